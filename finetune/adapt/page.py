"""The table and the page of an adaptation: the verdict first, then the rankers, then questions side by side."""

import shlex
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, name_installed
from data_pipeline.core.files import JsonObject
from data_pipeline.core.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MAP, compute_question_metrics, rank_rows

NUM_QUESTIONS, NUM_ANSWERS = 5, 3


def format_result(result: JsonObject) -> str:
    """Returns the table of rankers and the verdict, for the terminal."""
    rows = result["sample"]["rows"] if "sample" in result else result["rankers"]
    width = max(len(row["name"]) for row in rows)
    if "sample" in result:
        lines = [f"{'MAP on a hundred questions of SelQA':<{width}}  MAP    95% interval"]
        lines += [f"{row['name']:<{width}}  {row['map']:.2f}   {row['low']:.2f} to {row['high']:.2f}" for row in rows]
        lines += ["", result["sample"]["sentence"]]
    else:
        lines = [f"{'MAP':<{width}}    dev   test"]
        for row in rows:
            test = "" if row["test"] is None else f"  {row['test']:.3f}"
            lines.append(f"{row['name']:<{width}}  {row['dev']:.3f}{test}")
        lines.append("")
    released = [f"released: {result['release']}"] if result["release"] else []
    lines += [result["verdict"], *released, f"page: {result['page']}", "next:"]
    return "\n".join([*lines, *(f"  {command}" for command in result["commands"])])


def render_page(result: JsonObject, data: AnswerSet, scores: dict[str, np.ndarray]) -> str:
    """Returns the page of what ``result.json`` holds, with questions on which the rankers of ``scores`` differ."""
    return render_template(
        Path(__file__).parent,
        "adapt.html",
        title="Which ranker is best for your documents?" if result["chosen"] else "Pre-trained on your documents",
        notes=[],
        result=result,
        questions=pick_questions(data, scores),
        num_answers=NUM_ANSWERS,
    )


def pick_questions(data: AnswerSet, scores: dict[str, np.ndarray]) -> list[JsonObject]:
    """Returns the questions that the first and the last ranker differ on most, half of each direction if possible."""
    precision = {name: compute_question_metrics(data, values, (MAP,))[MAP] for name, values in scores.items()}
    first, *_, last = (*precision.values(), *precision.values())
    order = np.argsort(first - last, kind="stable")
    gained = order[: NUM_QUESTIONS // 2 + 1].tolist()
    lost = order[::-1][: NUM_QUESTIONS - len(gained)].tolist()
    orders = {name: rank_rows(data, values) for name, values in scores.items()}
    return [
        {
            "text": data.questions[q],
            "columns": [
                {"name": name, "precision": precision[name][q], "answers": _pick_answers(data, scores[name], order, q)}
                for name, order in orders.items()
            ],
        }
        for q in dict.fromkeys([*gained, *lost])
    ]


def _pick_answers(data: AnswerSet, scores: np.ndarray, order: np.ndarray, question: int) -> list[JsonObject]:
    """Returns the first NUM_ANSWERS candidates of a question, and its first right one if it ranks lower."""
    rows = order[data.starts[question] : data.starts[question + 1]]
    shown = np.union1d(np.arange(min(NUM_ANSWERS, len(rows))), np.flatnonzero(data.labels[rows])[:1]).astype(int)
    return [
        {"rank": rank + 1, "text": data.answers[row].as_py(), "score": scores[row], "right": data.labels[row] == 1}
        for rank, row in zip(shown.tolist(), rows[shown].tolist(), strict=True)
    ]


def list_commands(
    documents: list[str], model: str | None, test: Path | None, output: Path, question: str, embeds: bool
) -> list[str]:
    """Returns commands to paste: measure the model again, index the documents, and answer a question of them.

    model:  the one to use; None: the default one
    test:   the labelled questions that it was measured on
    embeds: whether it is a bi-encoder, which the index is then made by
    """
    index, (first, *more) = output / "index", documents
    is_default = model is None or name_installed(model) == DEFAULT_MODEL_NAME
    flags = [] if is_default else ["--model" if embeds else "--cross_encoder", model]
    commands: list[list[object]] = [
        ["index", "--answers", f"documents={first}", *(flags if embeds else []), "--output_dir", index],
        *(["index", "--add", f"documents={place}", "--output_dir", index] for place in more),
        ["search", "--index", index, *([] if embeds else flags), question],
    ]
    if test and model:
        commands.insert(0, ["evaluate", "--model", name_installed(model), "--data", f"files={test}"])
    return [shlex.join(["kinspan", *map(str, command)]) for command in commands]
