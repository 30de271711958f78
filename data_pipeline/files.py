"""Files that the program writes and reads again: whole or not there, or refused in one line."""

import json
import os
from pathlib import Path
from typing import Any

from .errors import KinspanError, one_line


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """Read the JSON object in ``path``. Raises KinspanError, which ends with ``advice``, where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KinspanError(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 raise a ValueError
        raise KinspanError(f"{path} is damaged ({one_line(error)}): {advice}") from error
    if not isinstance(found, dict):
        raise KinspanError(f"{path} is damaged (it holds no JSON object): {advice}")
    return found


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old content or the new, whole and on the disk."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
