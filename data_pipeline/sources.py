"""What ``--corpus`` says: one corpus or several, each with its share of the pairs and an objective of its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from .errors import KinspanError
from .remote.address import show_address

MAX_WEIGHT = 1000  # of a corpus or an objective
KEYS = ("path", "weight", "objective")  # of a corpus in a YAML file


@dataclass(frozen=True)
class Source:
    """One corpus of ``--corpus``.

    path:      its folder, or the address of a remote one
    weight:    its share of the pairs
    objective: what its pairs are; None is that of ``--objective``
    """

    path: str
    weight: int = 1
    objective: str | None = None


def parse_sources(texts: Sequence[str]) -> tuple[Source, ...]:
    """The corpora of ``--corpus``: ``PATH``, ``PATH=WEIGHT`` or ``PATH=WEIGHT,OBJECTIVE``.

    They are read from the right, since a path may hold "=" and ",": only a number behind the last "=" that can be a
    weight is one. Raises KinspanError for a weight that is out of range.
    """
    return tuple(map(_parse_source, texts))


def _parse_source(text: str) -> Source:
    found = re.fullmatch(r"(?P<path>.+)=(?P<weight>[0-9]+)(,(?P<objective>[^=]+))?", text, re.DOTALL)
    if not found:
        return Source(text)
    weight = found["weight"]
    if len(weight) > 9 or not 1 <= int(weight) <= MAX_WEIGHT:
        raise KinspanError(
            f"--corpus {text}: the weight behind the last = must be a whole number from 1 to {MAX_WEIGHT}; a path that "
            f"ends so needs a weight too: {text}=1"
        )
    return Source(found["path"], int(weight), found["objective"])


def format_source(entry: Any) -> str:
    """A corpus of a YAML file, ``{path: ..., weight: ..., objective: ...}`` or a text, as ``--corpus`` takes it.

    Raises KinspanError where it is neither.
    """
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping) or "path" not in entry or set(entry) - set(KEYS):
        raise KinspanError(f"corpus: {entry}: must be a path, or have path, and may have weight and objective")
    weight, objective = entry.get("weight", 1), entry.get("objective")
    if type(weight) is not int:
        raise KinspanError(f"corpus: {entry['path']}: weight {weight}: must be a whole number from 1 to {MAX_WEIGHT}")
    return f"{entry['path']}={weight}" + (f",{objective}" if objective is not None else "")


def list_paths(sources: Sequence[Source]) -> list[str]:
    """The places of the corpora, each once."""
    return list(dict.fromkeys(source.path for source in sources))


def name_corpora(paths: Sequence[str]) -> list[str]:
    """A name for each corpus, under which its figures stand: the last part of its place, with a number where it is
    another's too."""
    names: list[str] = []
    for path in paths:
        last = re.split(r"[/\\]", show_address(path).rstrip("/\\"))[-1] or "corpus"
        numbered = (f"{last}-{number}" for number in count(2))
        names.append(next(name for name in chain([last], numbered) if name not in names))
    return names
