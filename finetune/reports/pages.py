"""HTML pages from the templates of this package, and the candidates of a question as they show them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_template(template: str, filters: Mapping[str, Callable] | None = None, **values: Any) -> str:
    """The page that the template of this name makes of ``values``. Texts are escaped; an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render(**values)


@dataclass(frozen=True)
class ShownCandidate:
    rank: int
    text: str
    score: float
    right: bool


def pick_candidates(
    data: AnswerSet, scores: np.ndarray, order: np.ndarray, question: int, top: int
) -> list[ShownCandidate]:
    """The first ``top`` candidates of a question, by number, and the best right one if it comes later.

    scores: ``[N]``;  order: all rows, each question's best first, as ``metrics.best_first`` gives them
    """
    rows = order[data.starts[question] : data.starts[question + 1]]
    first_right = np.flatnonzero(data.labels[rows])[:1]
    ranks = np.union1d(np.arange(min(top, len(rows))), first_right).astype(np.int64)
    return [
        ShownCandidate(rank + 1, data.answers[row].as_py(), float(scores[row]), bool(data.labels[row]))
        for rank, row in zip(ranks.tolist(), rows[ranks].tolist(), strict=True)
    ]
