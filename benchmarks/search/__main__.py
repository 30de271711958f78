"""Measures search: BM25, the bi-encoder and their fusion, each re-ranked by cross-encoders or not.

Quality: MRR and R@1, R@5, R@10 (shares of the right answers; a question may have several) over the questions of a data
set, among the 100 answers that the first stage gives of all answers of the index; a paired randomisation test of MRR
against the bi-encoder alone, with Holm's correction. Latency: the median over some questions, one at a time, through
the same call that launch/search.py makes; all ways take turns, so that what disturbs hits all of them. Beside the clock
stands the processor time, which other work on the machine disturbs less.

What was measured is kept in --output_dir: the same command goes on from there."""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks import _common
from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.registry import SPECS, load_split
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS, Figures
from finetune.evaluation.retrieval import measure_retrieval
from finetune.evaluation.significance import compare_rows, format_p

FIRST = {"bi_encoder": "bi-encoder", "bm25": "BM25", "fusion": "fusion"}
BATCH = 16  # questions that are searched together, where it is not the time that counts
FOUND, LATENCY, TABLE = "found.jsonl", "latency.json", "search.md"

EPILOG = f"""example:
  python launch/index.py --answers insuranceqa=InsuranceQA --output_dir index
  python -m benchmarks.search --index index --data insuranceqa=InsuranceQA --split test \\
      --cross_encoder runs/insuranceqa/seed-1/best --output_dir runs/search

{SPECS}"""


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.prog = "python -m benchmarks.search"
    parser.add_argument("--index", required=True, help="Index of all answers of the data set.")
    parser.add_argument("--data", required=True, help="Data set, as below, whose questions are asked.")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="test")
    parser.add_argument("--cross_encoder", nargs="*", default=[], help="What ranks the candidates again, any number.")
    parser.add_argument("--rerank_k", type=int, default=30, help="Candidates that it ranks, for quality.")
    parser.add_argument("--questions", type=int, help="Ask so many, evenly spaced. Without it: all.")
    parser.add_argument("--timed", type=int, default=40, help="Questions that are timed.")
    parser.add_argument("--timed_k", type=int, nargs="*", default=[30, 100], help="Candidates re-ranked when timed.")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="Of the cross-encoders.")
    parser.add_argument("--output_dir", required=True, help="Folder for what was measured, and for search.md.")
    args = parser.parse_args()
    data, _ = load_split(args.data, args.split)
    if args.questions and args.questions < data.num_questions:
        data = data.take(np.linspace(0, data.num_questions - 1, args.questions).astype(np.int64))
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    measure(args, data)


def measure(args: Any, data: AnswerSet) -> None:
    from serve.search import Searcher

    searchers = {"": Searcher(args.index)}
    for name in args.cross_encoder:
        searchers[name] = Searcher(args.index, name, precision=args.precision)
    folder = Path(args.output_dir)
    expect_same(folder, args, data, searchers[""].index.manifest.source)
    found = find_all(folder / FOUND, searchers, data, args.rerank_k)
    latency = time_all(folder / LATENCY, searchers, data, args)
    show(folder / TABLE, found, latency, data, searchers, args)


def expect_same(folder: Path, args: Any, data: AnswerSet, source: str) -> None:
    """Refuses to go on with what another command measured."""
    names = ("index", "data", "split", "cross_encoder", "rerank_k", "precision")
    now = {**{name: getattr(args, name) for name in names}, "questions": data.num_questions, "answers": source}
    settings = folder / "settings.json"
    if settings.exists() and (then := json.loads(settings.read_text())) != now:
        other = next(name for name in now if then.get(name) != now[name])
        raise KinspanError(f"--output_dir {folder} was measured with another {other}: choose another folder")
    write_atomically(settings, json.dumps(now))


def find_all(path: Path, searchers: dict[str, Any], data: AnswerSet, rerank_k: int) -> list[dict[str, list[str]]]:
    """The ids that each way finds for each question, ``{way: ids}``, the best first."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # what follows the last line end was cut short
    found = [json.loads(line) for line in lines]
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
        with tqdm(total=data.num_questions, initial=len(found), desc="searching", disable=None, mininterval=5) as bar:
            while questions := data.questions[len(found) : len(found) + BATCH]:
                new = find_batch(searchers, questions, rerank_k)
                file.writelines(json.dumps(own) + "\n" for own in new)
                file.flush()
                found += new
                bar.update(len(new))
    return found


def find_batch(searchers: dict[str, Any], questions: Sequence[str], rerank_k: int) -> list[dict[str, list[str]]]:
    """Every first stage, and what each cross-encoder makes of it: it scores a candidate of several stages once."""
    first = {name: searchers[""].search(questions, 100, first_stage=stage).hits for stage, name in FIRST.items()}
    found = [{name: [hit.id for hit in of[number]] for name, of in first.items()} for number in range(len(questions))]
    heads = [
        {hit.id: hit.text for of in first.values() for hit in of[number][:rerank_k]} for number in range(len(questions))
    ]
    for model, searcher in searchers.items():
        if not model:
            continue
        scored = searcher.cross_encoder.score(questions, [list(own.values()) for own in heads])
        for own, texts, values in zip(found, heads, scored, strict=True):
            scores = dict(zip(texts, values, strict=True))
            for name in FIRST.values():
                head = sorted(own[name][:rerank_k], key=lambda one, scores=scores: -scores[one])
                own[f"{name} + {model}"] = head + own[name][rerank_k:]
    return found


def time_all(path: Path, searchers: dict[str, Any], data: AnswerSet, args: Any) -> dict[str, dict[str, float]]:
    """Medians of each way's milliseconds by the clock and of the processor, under "clock" and "processor"."""
    if path.exists():
        return json.loads(path.read_text())
    ways = {
        f"{name}{f' + {model}, {k}' if model else ''}": (searcher, stage, k)
        for model, searcher in searchers.items()
        for stage, name in FIRST.items()
        for k in (args.timed_k if model else [0])
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    chosen = np.linspace(0, data.num_questions - 1, args.timed + 1).astype(np.int64)
    for number, question in enumerate(tqdm([data.questions[n] for n in chosen], desc="timing", disable=None)):
        for way, (searcher, stage, k) in ways.items():
            began, worked = time.perf_counter(), time.process_time()
            searcher.search([question], 3, k, stage)
            if number:  # the first of each only warms up
                taken[way].append((time.perf_counter() - began, time.process_time() - worked))
    medians = {
        way: [1000 * statistics.median(column) for column in zip(*own, strict=True)] for way, own in taken.items()
    }
    latency = {way: dict(zip(("clock", "processor"), own, strict=True)) for way, own in medians.items()}
    write_atomically(path, json.dumps(latency))
    return latency


def show(
    path: Path,
    found: list[dict[str, list[str]]],
    latency: dict[str, dict[str, float]],
    data: AnswerSet,
    searchers: dict[str, Any],
    args: Any,
) -> None:
    right = [{data.answer_ids[row].as_py() for row in range(r.start, r.stop) if data.labels[row]} for r in data.rows()]
    figures: dict[str, Figures] = {
        way: measure_retrieval([of_question[way] for of_question in found], right) for way in found[0]
    }
    tests = compare_rows([np.atleast_2d(own[MRR]) for own in figures.values()])
    lines = []
    for (way, own), test in zip(figures.items(), tests, strict=True):
        times = [own for name, own in latency.items() if name in (way, f"{way}, {args.rerank_k}")]
        lines.append(
            (
                way,
                *(f"{own[metric].mean():.3f}" for metric in RETRIEVAL_METRICS),
                "" if test is None else f"{test['difference']:+.3f}",
                "" if test is None else format_p(test["corrected"]["randomisation"]),
                *(f"{times[0][of]:.1f}" if times else "" for of in ("clock", "processor")),
            )
        )
    header = ("", "MRR", "R@1", "R@5", "R@10", "MRR - bi-encoder", "p", "ms", "processor ms")
    counts = f"{data.num_questions:,} questions, {len(searchers[''].index):,} answers"
    title = f"{data.name} {args.split}: {counts}; re-ranked: {args.rerank_k}"
    print(title)
    _common.print_table(header, lines)
    more = [(way, f"{own['clock']:.1f}", f"{own['processor']:.1f}") for way, own in latency.items() if "," in way]
    if more:
        print("\nlatency by how many candidates are re-ranked")
        _common.print_table(("", "ms", "processor ms"), more)
    second = ["", *as_markdown(("", "ms", "processor ms"), more)] if more else []
    write_atomically(path, "\n".join([title, "", *as_markdown(header, lines), *second]) + "\n")
    means = {way: {metric: float(own[metric].mean()) for metric in RETRIEVAL_METRICS} for way, own in figures.items()}
    _common.report("search", {"means": means, "latency": latency})


def as_markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows)]


if __name__ == "__main__":
    _common.run(main)
