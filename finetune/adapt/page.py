"""The page of an adaptation: the verdict first, then the ways, then questions side by side."""

from typing import Any

import numpy as np

from finetune.evaluation.metrics import MAP, compute_question_metrics, rank_rows
from finetune.reports.pages import pick_candidates, render_template

from .questions import Questions
from .verdict import Verdict

NUM_QUESTIONS, NUM_ANSWERS = 5, 3


def render_page(
    result: dict[str, Any],
    title: str,
    told: list[list[str]],
    judged: tuple[Questions, Verdict] | None,
    following: list[str],
) -> str:
    """Returns the page.

    result:    what ``result.json`` holds
    title:     of the table
    told:      what went in and what was learned, in lines
    judged:    the questions and the verdict; None without labels
    following: commands to run next
    """
    return render_template(
        "adapt.html",
        title="Which ranker is best for your documents?" if judged else "Adapted to your documents, not judged",
        notes=[],
        result=result,
        table=title,
        went_in=told[0],
        learned=told[1],
        questions=_pick_questions(*judged) if judged else [],
        judged=judged is not None,
        num_answers=NUM_ANSWERS,
        following=following,
    )


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
