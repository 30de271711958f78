"""The candidates of a question as the pages show them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune.data.answers import AnswerSet

TEMPLATES = Path(__file__).resolve().parent / "templates"


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
