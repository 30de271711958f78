"""The page that shows where the rankings of several systems differ most."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_pipeline.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.evaluation.comparison import format_difference, list_metrics
from finetune.evaluation.metrics import MAP, TITLES, compute_question_metrics, rank_rows

from .pages import TEMPLATES, pick_candidates

NUM_QUESTIONS = 50
NUM_ANSWERS = 3  # per question and system


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
