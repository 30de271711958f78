"""Turns what ``python -m benchmarks.search`` found into an evaluation for the page /evaluate of kinspan serve."""

import json
from pathlib import Path

from benchmarks import _common
from benchmarks.search.__main__ import FIRST, FOUND, draw_questions, group_seeds
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from finetune.data.registry import load_split
from serve.index import Index, iterate_answers
from serve.service.evaluations import EvaluatedQuery, write_evaluation

EPILOG = """example:
  python -m benchmarks.search.evaluation --results runs/search --output_dir runs/evaluations/InsuranceQA
  kinspan serve --index index --evaluation runs/evaluations/InsuranceQA"""


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.prog = "python -m benchmarks.search.evaluation"
    parser.add_argument("--results", required=True, help="The --output_dir of benchmarks.search.")
    parser.add_argument("--output_dir", required=True, help="Folder of the evaluation, by whose name it is called.")
    args = parser.parse_args()
    results = Path(args.results)
    settings = read_object(results / "settings.json", "run benchmarks.search first")
    asked = read_found(results / FOUND, settings)
    write_evaluation(Path(args.output_dir), asked, read_index(Path(settings["index"])))
    print(f"{args.output_dir}: {len(asked):,} questions, {len(asked[0].found)} models")


def read_found(path: Path, settings: dict) -> list[EvaluatedQuery]:
    """The questions with what was found for them, by the first seed of each cross-encoder.

    benchmarks.search keeps no scores.
    """
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last line end was cut short
    data = draw_questions(load_split(settings["data"], settings["split"])[0], len(lines))
    if not lines or len(lines) != data.num_questions:
        raise KinspanError(f"{path} has {len(lines):,} questions: run benchmarks.search once more")
    models = {"": "", **{f" + {row}": f" + {own[0]}" for row, own in group_seeds(settings["cross_encoder"]).items()}}
    shown = {name + label: name + model for label, model in models.items() for name in FIRST.values()}
    right = [
        [data.answer_ids[row].as_py() for row in range(r.start, r.stop) if data.labels[row]]
        for r in data.question_slices()
    ]
    rows = zip(data.question_ids, data.questions, right, map(json.loads, lines), strict=True)
    return [
        EvaluatedQuery(name, text, own, {label: [(one, None) for one in found[key]] for label, key in shown.items()})
        for name, text, own, found in rows
    ]


def read_index(folder: Path) -> list:
    """Returns all answers of an index."""
    index = Index(folder)
    return list(iterate_answers(index.texts, range(len(index))))


if __name__ == "__main__":
    _common.run(main)
