"""Is the verdict of kinspan adapt right? Fifty labelled questions of each set, against test questions it never saw.

For each set and draw: adapt is given the documents and 50 questions; what its verdict says to use, and the base model,
are then measured on up to 300 test questions. A set is pre-trained on once, and its draws share that. Every draw leaves
a line in --lines, and is skipped where it is there: the same command goes on.

SETS.json: {"covidqa": {"documents": "documents.jsonl", "questions": "files=FOLDER"}, ...}. With "search": true adapt is
given the right passages alone, all paragraphs are searched, and rank fusion of BM25 and the base model is measured too.
"""

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.core.default_model import default_model, name_installed
from finetune.adapt.budget import parse_budget
from finetune.adapt.passages import DEPTH
from finetune.adapt.questions import list_lines, thin
from finetune.adapt.run import RESULT, AdaptOptions, PipelineHooks, adapt
from finetune.data.answers import AnswerSet, concatenate
from finetune.data.filters import find_kept
from finetune.data.folds import group_questions
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25
from finetune.evaluation.config import EvaluateConfig
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.ranking.measure import measure_search
from finetune.ranking.model import score_answers
from launch.commands.adapt import choose_objective, prepare_documents, pretrain
from serve.answers import read_paragraphs

DRAWN, POOL, TESTED = 50, 1000, (300, 5000)
FIGURES = ("base", "used", "fused", "predicted", "minutes")
HOOKS = PipelineHooks(prepare_documents, choose_objective, pretrain, read_paragraphs)


def draw(spec: str, number: int) -> tuple[AnswerSet, AnswerSet]:
    """Returns the drawn questions, and test questions of other groups, see ``group_questions``."""
    pool = concatenate([load_split(spec, split) for split in ("train", "dev", "test")])
    pool = pool.take(find_kept(pool, "clean"))
    pool = pool.take(np.random.default_rng(number).permutation(pool.num_questions)[:POOL])
    groups = group_questions(pool)
    test = replace(pool.take(~np.isin(groups, groups[:DRAWN])), split="test")
    return thin(pool.take(np.arange(DRAWN)), (DRAWN, 30 * DRAWN), []), thin(test, TESTED, [])


def measure(models: list[str], test: AnswerSet, place: dict) -> list[float]:
    """Returns the MAP of each model, and of a search the one of rank fusion as well."""
    if not place.get("search"):
        return [compute_question_metrics(test, score_answers(model, test), (MAP,))[MAP].mean() for model in models]
    right, paragraphs = test.keep(test.labels == 1), read_paragraphs([place["documents"]])
    config = EvaluateConfig(model=[*dict.fromkeys(models)], depth=DEPTH, json=True)
    *_, found = measure_search(config, right, {}, paragraphs)
    by_name = {row["name"]: row["map"] for row in json.loads(found)["systems"]}
    fused = next(value for name, value in by_name.items() if name.startswith(f"{BM25} and "))
    return [*(by_name[name_installed(model)] for model in models), fused]


def judge_draw(name: str, place: dict, number: int, budget: str, work: Path) -> dict:
    """Adapts to one draw, and returns its line."""
    drawn, test = draw(place["questions"], number)
    shared, folder = work / name / "pretrained", work / name / f"draw-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = list(list_lines(replace(drawn, split="questions")))
    if place.get("search"):
        rows = [json.loads(line) for line in lines]
        lines = [json.dumps({key: row[key] for key in ("question", "answer")}) + "\n" for row in rows if row["label"]]
    (folder / "questions.jsonl").write_text("".join(lines))
    options = AdaptOptions([place["documents"]], None, None, default_model(), parse_budget(budget), shared)
    if not (shared / RESULT).is_file():
        adapt(options, HOOKS)
    output = folder / "adapted"
    if not output.exists():
        shutil.copytree(shared, output, copy_function=shutil.copy2, ignore=shutil.ignore_patterns("release", RESULT))
    began = time.monotonic()
    result = adapt(replace(options, questions=str(folder / "questions.jsonl"), output=output), HOOKS)
    minutes = (time.monotonic() - began) / 60
    models = [default_model(), result["release"] or default_model()]
    base, used, fused = (*measure(models, test, place), np.nan)[:3]
    line = {"set": name, "draw": number, "budget": budget, "chosen": result["chosen"]}
    predicted = next(row["map"] for row in result["rankers"] if row["name"] == result["chosen"])
    rows = {row["name"]: [round(row[key] or 0, 4) for key in ("map", "gain", "p", "ms")] for row in result["rankers"]}
    shutil.rmtree(output)
    figures = dict(zip(FIGURES, (base, used, fused, predicted, minutes), strict=True))
    return {**line, **{key: round(value, 4) for key, value in figures.items()}, "rankers": rows}


def print_results(lines: list[dict]) -> None:
    """Prints the mean and worst gain of each set's draws, and how well their MAP was predicted."""
    rows = []
    for name in [*dict.fromkeys(line["set"] for line in lines), "all"]:
        drawn = [line for line in lines if name in (line["set"], "all")]
        base, used, fused, predicted, minutes = ([line.get(key, np.nan) for line in drawn] for key in FIGURES)
        gains, error = used - base, np.abs(predicted - used).mean()
        figures = [base.mean(), fused.mean(), used.mean(), gains.mean(), gains.min(), (gains < -0.01).mean(), error]
        counts = [len(drawn), int((gains != 0).sum()), round(minutes.mean())]
        rows.append([name, *map(str, counts), *(f"{figure:.3f}".replace("nan", "") for figure in figures)])
    header = ["set", "draws", "changed", "minutes", "base", "rank fusion", "used"]
    _common.print_table([*header, "gain", "worst", "worse by .01", "error of MAP"], rows)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--sets", type=Path, required=True, help="SETS.json.")
    parser.add_argument("--draws", type=int, default=5, help="Draws of each set.")
    parser.add_argument("--budget", default="6400pairs", help="Of each set's pre-training.")
    parser.add_argument("--work", type=Path, required=True, help="Folder for what is made.")
    parser.add_argument("--lines", type=Path, required=True, help="File of the lines.")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.lines.read_text().splitlines()] if args.lines.exists() else []
    known = {(line["set"], line["draw"]) for line in lines}
    for number in range(1, args.draws + 1):
        for name, place in json.loads(args.sets.read_text()).items():
            if (name, number) not in known:
                lines.append(judge_draw(name, place, number, args.budget, args.work))
                with args.lines.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    print_results(lines)
    _common.print_environment()


if __name__ == "__main__":
    _common.run(main)
