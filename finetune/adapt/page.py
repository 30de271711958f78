"""The page of an adaptation: the verdict first, then the ways, then questions side by side."""

from typing import Any

import numpy as np

from data_pipeline.pages import render_template
from finetune.evaluation.metrics import MAP, compute_question_metrics, rank_rows
from finetune.reports.comparison_page import TEMPLATES, pick_candidates

from .questions import Questions
from .verdict import Verdict

NUM_QUESTIONS, NUM_ANSWERS = 5, 3


def render_page(result: dict[str, Any], questions: Questions | None, verdict: Verdict | None) -> str:
    """Returns the page of what ``result.json`` holds, with questions side by side where there are labels."""
    return render_template(
        TEMPLATES,
        "adapt.html",
        title="Which ranker is best for your documents?" if verdict else "Adapted to your documents, not judged",
        notes=[],
        result=result,
        questions=_pick_questions(questions, verdict) if questions and verdict else [],
        num_answers=NUM_ANSWERS,
    )


def render_text(result: dict[str, Any]) -> str:
    """Returns what the terminal says at the end."""
    width = max((len(row["name"]) for row in result["ways"]), default=0)
    return render_template(TEMPLATES, "adapt.txt", result=result, width=width).rstrip()


def _pick_questions(questions: Questions, verdict: Verdict) -> list[dict[str, Any]]:
    """The test questions that the two measured ways differ on most, half of each direction where there are such."""
    test, names = questions.test, list(verdict.tested)
    precision = {name: compute_question_metrics(test, verdict.tested[name], (MAP,))[MAP] for name in names}
    first, last = names[0], names[-1]
    order = np.argsort(precision[first] - precision[last], kind="stable")
    gained = order[: NUM_QUESTIONS // 2 + 1].tolist()
    lost = order[::-1][: NUM_QUESTIONS - len(gained)].tolist()
    orders = {name: rank_rows(test, verdict.tested[name]) for name in names}
    return [
        {
            "text": test.questions[q],
            "columns": [
                {
                    "name": name,
                    "precision": precision[name][q],
                    "answers": pick_candidates(test, verdict.tested[name], orders[name], q, NUM_ANSWERS),
                }
                for name in names
            ],
        }
        for q in dict.fromkeys([*gained, *lost])
    ]
