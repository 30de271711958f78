"""The page that shows where the rankings of several systems differ most, and candidates as all pages show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.evaluation.comparison import format_difference, list_metrics
from finetune.evaluation.metrics import MAP, TITLES, compute_question_metrics, rank_rows

TEMPLATES = Path(__file__).resolve().parent / "templates"
NUM_QUESTIONS = 50
NUM_ANSWERS = 3  # per question and system


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


def render_comparison(
    title: str,
    data: AnswerSet,
    scores: dict[str, np.ndarray],
    rows: list[dict[str, Any]],
    shown: Sequence[str],
    notes: Sequence[str] = (),
) -> str:
    """Returns a page of HTML: the figures, and the questions on which the systems ``shown`` differ most.

    They differ by the range of their average precisions.

    scores:  of each system, ``[N]``
    rows:    what ``comparison.compare_systems`` returns
    notes:   what a reader must know, a line each
    """
    by_name = {name: compute_question_metrics(data, scores[name], (MAP,))[MAP] for name in shown}
    precision = np.stack(list(by_name.values()))  # [systems, Q]
    spread = np.ptp(precision, axis=0)
    furthest = [q for q in np.argsort(-spread, kind="stable")[:NUM_QUESTIONS].tolist() if spread[q] > 0]
    orders = {name: rank_rows(data, scores[name]) for name in shown}
    questions = [
        {
            "id": data.question_ids[q],
            "text": data.questions[q],
            "columns": [
                {
                    "name": name,
                    "precision": by_name[name][q],
                    "answers": pick_candidates(data, scores[name], orders[name], q, NUM_ANSWERS),
                }
                for name in shown
            ],
        }
        for q in furthest
    ]
    return render_template(
        TEMPLATES,
        "compare.html",
        title=title,
        notes=notes,
        rows=rows,
        metrics=list_metrics(rows),
        titles={metric: TITLES.get(metric, metric) for metric in list_metrics(rows)},
        against=format_difference,
        questions=questions,
        num_answers=NUM_ANSWERS,
    )
