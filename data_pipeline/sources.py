"""Parses ``--corpus``: one corpus or several, each with its share of the pairs and an objective of its own."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain, count
from pathlib import Path

from data_pipeline.core.errors import KinspanError

MAX_WEIGHT = 1000  # of a corpus or an objective
MAX_WEIGHT_CHARS = 12  # length of a written weight
KEYS = ("path", "weight", "objective")  # of a corpus in a YAML file


@dataclass(frozen=True)
class Source:
    """Describes one corpus of ``--corpus``.

    path:      its folder, or the address of a remote one
    weight:    its share of the pairs, to be divided by the sum of all weights
    objective: the objective of its pairs; None: the one of ``--objective``
    """

    path: str
    weight: Fraction = Fraction(1)
    objective: str | None = None


def parse_sources(texts: Sequence[str]) -> tuple[Source, ...]:
    """Parses ``--corpus``: each is ``PATH``, ``PATH=WEIGHT`` or ``PATH=WEIGHT,OBJECTIVE``, such as ``docs=0.7,ssp``.

    They are parsed from the right, since a path may contain "=" and ",": only a number after the last "=" is a weight.
    Raises KinspanError for a weight that is out of range.
    """
    return tuple(map(_parse_source, texts))


def _parse_source(text: str) -> Source:
    number = r"-?(?:[0-9]+|[0-9]*\.[0-9]+)"
    match = re.fullmatch(rf"(.+)=({number})(?:,([^=]+))?", text, re.DOTALL)
    if not match:
        return Source(text)
    path, weight, objective = match.groups()
    if len(weight) > MAX_WEIGHT_CHARS or not 0 < Fraction(weight) <= MAX_WEIGHT:
        raise KinspanError(f"--corpus {text}: the weight must be above 0 and at most {MAX_WEIGHT}")
    return Source(path, Fraction(weight), objective)


def format_source(entry: object) -> str:
    """Formats an entry of a YAML file, ``{path: ..., weight: ..., objective: ...}`` or text, as ``--corpus`` takes it.

    Raises KinspanError for anything else.
    """
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping) or "path" not in entry or set(entry) - set(KEYS):
        raise KinspanError(f"corpus: {entry}: must be a path, or have path, and may have weight and objective")
    weight, objective = entry.get("weight", 1), entry.get("objective")
    if type(weight) not in (int, float) or not math.isfinite(weight):
        raise KinspanError(f"corpus: {entry['path']}: weight {weight}: must be a number above 0, at most {MAX_WEIGHT}")
    return f"{entry['path']}={Decimal(str(weight)):f}" + (f",{objective}" if objective is not None else "")


def is_remote(path: str | Path) -> bool:
    """Returns whether a corpus's path is the address of a remote folder, such as s3://bucket/wiki."""
    return "://" in str(path)


def show_address(url: str) -> str:
    """Returns the address as messages show it: without user name and password."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def list_paths(sources: Sequence[Source]) -> list[str]:
    """Returns the paths of the corpora, each once."""
    return list(dict.fromkeys(source.path for source in sources))


def name_corpora(paths: Sequence[str]) -> list[str]:
    """Returns a name for each corpus: the last part of its path, with a number if an earlier corpus has the same."""
    names: list[str] = []
    for path in paths:
        last = re.split(r"[/\\]", show_address(path).rstrip("/\\"))[-1] or "corpus"
        numbered = (f"{last}-{number}" for number in count(2))
        names.append(next(name for name in chain([last], numbered) if name not in names))
    return names
