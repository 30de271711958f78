"""Parses ``--corpus``: one corpus or several, each with a share of the training pairs and perhaps its own objective."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, count
from pathlib import Path

from data_pipeline.core.errors import KinspanError, redact

MAX_WEIGHT = 1000  # of a corpus or an objective
MAX_WEIGHT_CHARS = 12  # of a written weight: Python refuses to parse thousands of digits


@dataclass(frozen=True)
class Source:
    """Describes one corpus of ``--corpus``; an ``objective`` of None is that of ``--objective``."""

    path: str
    weight: Fraction = Fraction(1)
    objective: str | None = None


def parse_sources(texts: Sequence[str]) -> tuple[Source, ...]:
    """Parses texts ``PATH``, ``PATH=WEIGHT`` or ``PATH=WEIGHT,OBJECTIVE``, such as ``docs=0.7,ssp``.

    A path may contain "=" and ",", so a text is parsed from the right: only a number after its last "=" is a weight.
    """
    return tuple(map(_parse_source, texts))


def _parse_source(text: str) -> Source:
    number = r"-?(?:[0-9]+|[0-9]*\.[0-9]+)"  # a negative one is refused below, rather than read as part of the path
    match = re.fullmatch(rf"(.+)=({number})(?:,([^=]+))?", text, re.DOTALL)
    if not match:
        return Source(text)
    path, weight, objective = match.groups()
    if len(weight) > MAX_WEIGHT_CHARS or not 0 < Fraction(weight) <= MAX_WEIGHT:
        raise KinspanError(f"--corpus {text}: needs 0 < weight <= {MAX_WEIGHT} in up to {MAX_WEIGHT_CHARS} characters")
    return Source(path, Fraction(weight), objective)


def is_url(name: str | Path) -> bool:
    """Returns whether a name is a URL that fsspec opens, such as s3://bucket/wiki, and not a local path."""
    return "://" in str(name)


def list_paths(sources: Sequence[Source]) -> list[str]:
    """Returns the paths of the corpora, each once."""
    return list(dict.fromkeys(source.path for source in sources))


def name_corpora(paths: Sequence[str]) -> list[str]:
    """Returns a name for each corpus: the last part of its path, with a number if an earlier corpus has the same."""
    names: list[str] = []
    for path in paths:
        last = re.split(r"[/\\]", redact(path).rstrip("/\\"))[-1] or "corpus"
        numbered = (f"{last}-{number}" for number in count(2))
        names.append(next(name for name in chain([last], numbered) if name not in names))
    return names
