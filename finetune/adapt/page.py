"""The page of an adaptation: the verdict first, then the ways, then questions side by side."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MAP, compute_question_metrics, rank_rows
from finetune.reports.comparison_page import TEMPLATES, pick_candidates
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, name_installed

NUM_QUESTIONS, NUM_ANSWERS = 5, 3


Shown = tuple[AnswerSet, dict[str, np.ndarray]]  # questions, and the scores [N] of the rankers to compare on them


def render_page(result: dict[str, Any], shown: Shown) -> str:
    """Returns the page of what ``result.json`` holds, with questions side by side."""
    return render_template(
        TEMPLATES,
        "adapt.html",
        title="Which ranker is best for your documents?" if result["chosen"] else "Pre-trained on your documents",
        notes=[],
        result=result,
        questions=_pick_questions(*shown),
        num_answers=NUM_ANSWERS,
    )


def render_text(result: dict[str, Any]) -> str:
    """Returns what the terminal says at the end."""
    rows = result["sample"]["rows"] if "sample" in result else result["ways"]
    width = max(len(row["name"]) for row in rows)
    return render_template(TEMPLATES, "adapt.txt", result=result, width=width).rstrip()


def list_commands(
    documents: list[str], model: str | None, test: Path | None, output: Path, question: str, embeds: bool
) -> list[str]:
    """The commands that measure the model again, index the documents and answer a question of them, to be pasted.

    model:  the one to use; None: the default one
    test:   the labelled questions that it was measured on
    embeds: whether it is a bi-encoder, which the index is then made by
    """
    index, first, *more = output / "index", *documents
    own = (
        []
        if model is None or name_installed(model) == DEFAULT_MODEL_NAME
        else [f"--{'model' if embeds else 'cross_encoder'}", model]
    )
    commands = [
        ["index", "--answers", f"documents={first}", *(own if embeds else []), "--output_dir", index],
        *(["index", "--add", f"documents={one}", "--output_dir", index] for one in more),
        ["search", "--index", index, *([] if embeds else own), question],
    ]
    lines = [shlex.join(["kinspan", *map(str, command)]) for command in commands]
    return [measure_again(model, test), *lines] if test and model else lines


def measure_again(model: str, test: Path) -> str:
    """The command that measures a model on labelled questions, beside BM25."""
    return shlex.join(["kinspan", "evaluate", "--model", name_installed(model), "--data", f"files={test}"])


def _pick_questions(data: AnswerSet, scores: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The questions that the rankers differ on most, half of each direction where there are such."""
    names = list(scores)
    precision = {name: compute_question_metrics(data, scores[name], (MAP,))[MAP] for name in names}
    first, last = names[0], names[-1]
    order = np.argsort(precision[first] - precision[last], kind="stable")
    gained = order[: NUM_QUESTIONS // 2 + 1].tolist()
    lost = order[::-1][: NUM_QUESTIONS - len(gained)].tolist()
    orders = {name: rank_rows(data, scores[name]) for name in names}
    return [
        {
            "text": data.questions[q],
            "columns": [
                {
                    "name": name,
                    "precision": precision[name][q],
                    "answers": pick_candidates(data, scores[name], orders[name], q, NUM_ANSWERS),
                }
                for name in names
            ],
        }
        for q in dict.fromkeys([*gained, *lost])
    ]
