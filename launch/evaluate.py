"""How well rankings of candidate answers are: MAP, MRR, P@1 and nDCG@10 of models, or of anyone's TREC files."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np

from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.data.filters import filter_questions
from finetune.data.registry import SPECS, load_split, parse_columns
from finetune.evaluation import trec
from finetune.evaluation.comparison import compare_systems, format_per_question, format_table, name_folders
from finetune.evaluation.metrics import Figures, compute_question_metrics, compute_run_metrics
from finetune.reports.comparison_page import render_comparison
from launch._cli import parse, run

DESCRIPTION = """Measures rankings of candidate answers: MAP, MRR, P@1 and nDCG@10, equal to trec_eval's.

--run and --qrels score TREC files of any system: lines of `question Q0 candidate rank score tag` and of
`question 0 candidate relevance`. --model and --data score models on a data set, with BM25 for comparison: any sequence
classifier, or a bi-encoder of sentence-transformers by cosine. Of several, each is tested against the first, paired
over questions, by t-test and by randomisation test.

--contamination and --data tell how many test sentences stand in a pre-training corpus, word for word or nearly
(8-grams), with examples; with --model also the metrics with and without the questions whose answers do.

Candidates rank by score as a 32-bit float; ties go by candidate id, the last first; the rank column is ignored.
Prints a table, and last a line of JSON."""

EPILOG = f"""examples:
  python launch/evaluate.py --run run.txt --qrels qrels.txt
  python launch/evaluate.py --run ours.txt theirs.txt --qrels qrels.txt --per_question questions.csv
  python launch/evaluate.py --model runs/wikiqa/best --data wikiqa=data/WikiQACorpus
  python launch/evaluate.py --model runs/ssp runs/base --data trecqa=data/trecqa --split dev --output compared/trecqa
  python launch/evaluate.py --contamination corpora/docs --data wikiqa=data/WikiQACorpus --model runs/wikiqa/best

--output has for each model run.txt, qrels.txt and predictions.jsonl in a folder of its name, the metrics of every
question in per_question.csv, and in comparison.html the questions where the models differ most.

{SPECS}"""

BM25 = "BM25"


@dataclass
class EvaluateConfig:
    """Flags of this entry."""

    run: list[str] | None = field(
        default=None, metadata={"action": "extend", "help": "TREC run files, of which the first is the baseline."}
    )
    qrels: str | None = field(default=None, metadata={"help": "With --run: the judgements, a TREC qrels file."})
    per_question: str | None = field(
        default=None, metadata={"help": "With --run: CSV file for the metrics of every question."}
    )
    contamination: str | None = field(
        default=None, metadata={"help": "Corpus folder, as launch/prepare.py writes it: what of --data stands in it?"}
    )
    model: list[str] | None = field(
        default=None,
        metadata={"action": "extend", "help": "Model folders or hub names, of which the first is the baseline."},
    )
    data: str | None = field(
        default=None,
        metadata={"help": "With --model and --contamination: the data set, such as wikiqa=FOLDER; below are all."},
    )
    columns: str | None = field(
        default=None,
        metadata={"help": "For files= and hub=: names of the columns: question=query,answer=passage,label=relevant."},
    )
    split: Literal["train", "dev", "test"] = field(default="test", metadata={"help": "With --model."})
    filter: Literal["raw", "no-all-negative", "clean"] = field(
        default="clean",
        metadata={
            "help": "With --model: questions with an answer and with a candidate that is none (clean), with an "
            "answer, or all."
        },
    )
    max_length: int = field(default=128, metadata={"help": "With --model: tokens of a question with a candidate."})
    precision: Literal["fp32", "bf16"] = field(
        default="fp32", metadata={"help": "With --model: bf16 is faster, and rounds scores."}
    )
    output: str | None = field(
        default=None, metadata={"help": "With --model: folder for the predictions and the page."}
    )


def score_files(config: EvaluateConfig) -> None:
    """``--run``: the metrics of TREC files."""
    runs = config.run or []
    qrels = trec.read_qrels(Path(str(config.qrels)))
    systems: dict[str, Figures] = {}
    notes = []
    for name in runs:
        scores = trec.read_run(Path(name))
        notes += [f"{name}: {note}" for note in _named(name, trec.describe_coverage, qrels, scores)]
        systems[name] = _named(name, compute_run_metrics, qrels, scores)
    if config.per_question:
        trec.write_lines(Path(config.per_question), [format_per_question(systems, list(qrels))])
    print(f"{config.qrels}: {len(qrels):,} questions, {sum(map(len, qrels.values())):,} candidates judged")
    _report(compare_systems(systems), notes, {"qrels": config.qrels, "questions": len(qrels)})


def score_models(config: EvaluateConfig) -> None:
    """``--model``: the metrics of models and of BM25 on a data set."""
    models, output = config.model or [], Path(config.output) if config.output else None
    whole, notes = _load(config)
    data = filter_questions(whole, config.filter)
    if output:  # before the work, to see whether it can be made
        trec.make_folder(output)
    title = f"{data.name} {data.split}, {config.filter}"
    print(
        f"{title}: {data.num_questions:,} of {whole.num_questions:,} questions, {data.num_pairs:,} candidates",
        flush=True,
    )
    names = [*models, BM25]
    scores: dict[str, np.ndarray] = {}
    for name, folder in zip(names, name_folders(names), strict=True):
        scores[name] = _scores(name, data, config)
        if output:
            _named(name, trec.write_predictions, output / folder, data, scores[name], folder)
    systems = {name: _named(name, compute_question_metrics, data, scores[name]) for name in names}
    rows = compare_systems(systems)
    if output:
        shown = models if len(models) > 1 else names
        trec.write_lines(output / "per_question.csv", [format_per_question(systems, data.question_ids)])
        trec.write_lines(output / "comparison.html", [render_comparison(title, data, scores, systems, rows, shown)])
        notes = [*notes, f"{output} has the predictions, per_question.csv and comparison.html"]
    facts = {"data": config.data, "split": config.split, "filter": config.filter, "questions": data.num_questions}
    _report(rows, notes, {**facts, "candidates": data.num_pairs})


def search_corpus(config: EvaluateConfig) -> None:
    """``--contamination``: what of the data set stands in a corpus, and what the models do without it."""
    from data_pipeline.corpus import Corpus
    from finetune.evaluation.contamination import find_contamination, format_contamination, summarize_contamination

    corpus = Corpus(str(config.contamination))
    whole, notes = _load(config)
    data = filter_questions(whole, config.filter)
    for note in notes:
        print(note)
    models = {name: _scores(name, data, config) for name in config.model or []}
    found = find_contamination(data, corpus)
    print(format_contamination(data, corpus, found, models))
    print(json.dumps({"notes": notes, **summarize_contamination(data, corpus, found, models)}, ensure_ascii=False))


def _load(config: EvaluateConfig) -> tuple[AnswerSet, list[str]]:
    if config.max_length < 1:
        raise KinspanError(f"--max_length {config.max_length}: must be above 0")
    return load_split(str(config.data), config.split, parse_columns(config.columns))


def _scores(name: str, data: AnswerSet, config: EvaluateConfig) -> np.ndarray:
    if name == BM25:
        from finetune.evaluation.bm25 import score_bm25

        return score_bm25(data)
    from finetune.ranking.score import score_answers

    return score_answers(name, data, config.max_length, precision=config.precision)


def _named(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls it; an error says which system it is about."""
    try:
        return function(*arguments)
    except KinspanError as error:
        raise KinspanError(f"{name}: {error}") from error


def _report(rows: list[dict[str, Any]], notes: list[str], facts: dict[str, Any]) -> None:
    """Prints the notes, the table and the line of JSON."""
    for note in notes:
        print(note)
    print("", format_table(rows), "", sep="\n")
    print(json.dumps({**facts, "notes": notes, "systems": rows}, ensure_ascii=False))


# what is done, by the flag that asks for it, and the flags that go with it, of which the first must be given
MODES: dict[str, tuple[Callable[[EvaluateConfig], None], tuple[str, ...]]] = {
    "run": (score_files, ("qrels", "per_question")),
    "contamination": (search_corpus, ("data", "columns", "split", "filter", "max_length", "precision", "model")),
    "model": (score_models, ("data", "columns", "split", "filter", "max_length", "precision", "output")),
}


def check(config: EvaluateConfig) -> str:
    """The mode of these flags. Raises KinspanError for ones that do not go together."""
    given = [setting.name for setting in fields(config) if getattr(config, setting.name) != setting.default]
    modes = [mode for mode in MODES if mode in given]
    if not modes:
        choices = " or ".join(f"--{mode} with --{needs}" for mode, (_, (needs, *_)) in MODES.items())
        raise KinspanError(f"nothing to evaluate: give {choices}; see --help")
    mode = modes[0]
    _, companions = MODES[mode]
    for name in given:
        if name != mode and name not in companions:
            raise KinspanError(f"--{name} does not go with --{mode}; see --help")
    if companions[0] not in given:
        raise KinspanError(f"--{mode} needs --{companions[0]}; see --help")
    for flag in ("run", "model"):
        names = getattr(config, flag) or []
        for name in names:
            if names.count(name) > 1:
                raise KinspanError(f"--{flag} {name} is given twice")
    return mode


def main() -> None:
    config = parse(EvaluateConfig, DESCRIPTION, EPILOG)
    work, _ = MODES[check(config)]
    work(config)


if __name__ == "__main__":
    run(main)
