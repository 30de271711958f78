"""Settings as dataclass fields: each with its default and its help."""

from dataclasses import field
from typing import Any


def setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})
