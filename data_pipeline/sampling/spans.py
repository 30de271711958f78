"""Runs of whole sentences, as arrays of integers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spans:
    """Runs of whole sentences: ``[start, end)`` of sentences in a usable paragraph; arrays of one shape.

    hole_start, hole_end: the sentences ``[hole_start, hole_end)`` of the run are left out; None where no run has a hole
    """

    paragraph: np.ndarray
    start: np.ndarray
    end: np.ndarray
    hole_start: np.ndarray | None = None
    hole_end: np.ndarray | None = None

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> "Spans":
        """``change`` applied to each array."""
        arrays = (self.paragraph, self.start, self.end, self.hole_start, self.hole_end)
        return Spans(*(None if x is None else change(x) for x in arrays))  # type: ignore[arg-type]

    def __getitem__(self, rows: Any) -> "Spans":
        return self.map(lambda array: array[rows])

    def put(self, rows: Any, spans: "Spans") -> None:
        """``self[rows] = other``, in place."""
        for name in ("paragraph", "start", "end", "hole_start", "hole_end"):
            if getattr(self, name) is not None:
                getattr(self, name)[rows] = getattr(spans, name)


def join_columns(first: Spans, rest: Spans) -> Spans:
    """Joins Spans ``[n]`` and ``[n, k]``, or two of ``[n]``, as columns. Both have holes, or neither has."""
    arrays = ("paragraph", "start", "end", "hole_start", "hole_end")
    pairs = ((getattr(first, name), getattr(rest, name)) for name in arrays)
    return Spans(*(None if x is None else np.column_stack([x, y]) for x, y in pairs))  # type: ignore[arg-type]
