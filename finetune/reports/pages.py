"""HTML pages made from the templates of this package, and the candidates of a question as the pages show them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline import pages
from finetune.data.answers import AnswerSet

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_template(template: str, filters: Mapping[str, Callable] | None = None, **values: Any) -> str:
    """Fills the template of this name with ``values``. Texts are escaped, and a name without a value is an error."""
    return pages.render_template(TEMPLATES, template, filters, **values)


@dataclass(frozen=True)
class ShownCandidate:
    """A candidate on a page; ``rank`` counts from 1, and ``right`` says whether it answers the question."""

    rank: int
    text: str
    score: float
    right: bool


def pick_candidates(
    data: AnswerSet, scores: np.ndarray, order: np.ndarray, question: int, top: int
) -> list[ShownCandidate]:
    """Returns the ``top`` best candidates of the question with this number, and its best right one if it ranks lower.

    scores: ``[N]``
    order:  ``[N]``, what ``metrics.rank_rows`` returns for these scores
    """
    rows = order[data.starts[question] : data.starts[question + 1]]
    first_right = np.flatnonzero(data.labels[rows])[:1]
    ranks = np.union1d(np.arange(min(top, len(rows))), first_right).astype(np.int64)
    return [
        ShownCandidate(rank + 1, data.answers[row].as_py(), float(scores[row]), bool(data.labels[row]))
        for rank, row in zip(ranks.tolist(), rows[ranks].tolist(), strict=True)
    ]
