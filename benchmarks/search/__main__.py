"""Measures search: BM25, the bi-encoder and their fusion, each re-ranked by cross-encoders or not.

Quality: MRR and R@1, R@5, R@10 (shares of the right answers; a question may have several) over the questions of a data
set, among the 100 answers that the first stage gives of all answers of the index; a paired randomisation test of MRR
against the bi-encoder alone, with Holm's correction. Cross-encoders whose folders differ in seed-N alone are one row,
the mean of the seeds, and each row is compared with the first of them too; after "&" the order of the first stage and
that of the cross-encoder are fused. Latency: the median over some questions, one at a time, through the same call that
kinspan search makes; all ways take turns, so that what disturbs hits all of them. Beside the clock stands the
processor time, which other work on the machine disturbs less.

What was measured is kept in --output_dir: the same command goes on from there, also with more --questions."""

import json
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks import _common
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.registry import SPECS, load_split
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS, Figures
from finetune.evaluation.retrieval import measure_retrieval
from finetune.evaluation.significance import OVER_QUESTIONS, OVER_SEEDS, compare_rows, correct_greater, format_p, list_p
from pretrain.release.folder import fingerprint_model

BLENDED = "&"  # the fusion of a first stage's order with a cross-encoder's
FIRST = {"bi_encoder": "bi-encoder", "bm25": "BM25", "fusion": "fusion"}
BATCH = 16  # questions that are searched together, where it is not the time that counts
FOUND, LATENCY, TABLE = "found.jsonl", "latency.json", "search.md"

EPILOG = f"""example:
  kinspan index --answers insuranceqa=InsuranceQA --output_dir index
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
    parser.add_argument(
        "--rerank", nargs="+", choices=tuple(FIRST), default=list(FIRST), help="First stages whose candidates it ranks."
    )
    parser.add_argument("--questions", type=int, help="Ask so many, drawn by chance. Without it: all.")
    parser.add_argument("--timed", type=int, default=40, help="Questions that are timed.")
    parser.add_argument("--timed_k", type=int, nargs="*", default=[30, 100], help="Candidates re-ranked when timed.")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="Of the cross-encoders.")
    parser.add_argument("--output_dir", required=True, help="Folder for what was measured, and for search.md.")
    args = parser.parse_args()
    data = draw_questions(load_split(args.data, args.split)[0], args.questions)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    measure(args, data)


def draw_questions(data: AnswerSet, count: int | None = None) -> AnswerSet:
    """So many questions, or all, in an order drawn by chance: fewer are the first of more."""
    order = np.random.Generator(np.random.Philox(0)).permutation(data.num_questions)
    return data.take(order[:count])


def group_seeds(models: Sequence[str]) -> dict[str, list[str]]:
    """Cross-encoders that differ in their seed alone, by a name for the table.

    The name is that of the folder that seed-N lies in; folders of one name are told apart by their whole path.
    """
    rows: dict[str, list[str]] = {}
    for model in models:
        rows.setdefault(re.sub(r"/seed-\d+(/.*)?$", "", model), []).append(model)
    short = [Path(row).name for row in rows]
    return {row if short.count(Path(row).name) > 1 else Path(row).name: own for row, own in rows.items()}


def measure(args: Any, data: AnswerSet) -> None:
    from serve.search import Searcher

    searchers = {"": Searcher(args.index)}
    for name in args.cross_encoder:
        searchers[name] = Searcher(args.index, name, precision=args.precision)
    folder = Path(args.output_dir)
    expect_same(folder, args, searchers[""].index.manifest.state)
    reranked = [FIRST[stage] for stage in args.rerank]
    found = find_all(folder / FOUND, searchers, data, args.rerank_k, reranked)
    latency = time_all(folder / LATENCY, searchers, data, args)
    show(folder / TABLE, found, latency, data, searchers, reranked, args)


def expect_same(folder: Path, args: Any, state: str) -> None:
    """Refuses to go on with what another command measured, or the same one of other models or answers."""
    names = ("index", "data", "split", "cross_encoder", "rerank_k", "rerank", "precision")
    now = {**{name: getattr(args, name) for name in names}, "order": "drawn"}
    now |= {"content of --index": state, "weights": [fingerprint_model(name) for name in args.cross_encoder]}
    settings = folder / "settings.json"
    if settings.exists() and (then := json.loads(settings.read_text())) != now:
        other = next(name for name in now if then.get(name) != now[name])
        raise KinspanError(f"--output_dir {folder} was measured with another {other}: choose another folder")
    write_atomically(settings, json.dumps(now))


def find_all(
    path: Path, searchers: dict[str, Any], data: AnswerSet, rerank_k: int, reranked: Sequence[str]
) -> list[dict[str, list[str]]]:
    """The ids that each way finds for each question, ``{way: ids}``, the best first."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # what follows the last line end was cut short
    found = [json.loads(line) for line in lines]
    if len(found) > data.num_questions:
        raise KinspanError(f"{path} has {len(found):,} questions: ask for as many with --questions, or for more")
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
        with tqdm(total=data.num_questions, initial=len(found), desc="searching", disable=None, mininterval=5) as bar:
            while questions := data.questions[len(found) : len(found) + BATCH]:
                new = find_batch(searchers, questions, rerank_k, reranked)
                file.writelines(json.dumps(own) + "\n" for own in new)
                file.flush()
                found += new
                bar.update(len(new))
    return found


def find_batch(
    searchers: dict[str, Any], questions: Sequence[str], rerank_k: int, reranked: Sequence[str]
) -> list[dict[str, list[str]]]:
    """Every first stage, and what each cross-encoder makes of those that are re-ranked.

    It scores a candidate of several stages once.
    """
    first = {name: searchers[""].search(questions, 100, first_stage=stage).hits for stage, name in FIRST.items()}
    found = [{name: [hit.id for hit in of[number]] for name, of in first.items()} for number in range(len(questions))]
    heads = [
        {hit.id: hit.text for name in reranked for hit in first[name][number][:rerank_k]}
        for number in range(len(questions))
    ]
    for model, searcher in searchers.items():
        if not model:
            continue
        scored = searcher.cross_encoder.score(questions, [list(own.values()) for own in heads])
        for own, texts, values in zip(found, heads, scored, strict=True):
            scores = dict(zip(texts, values, strict=True))
            for name in reranked:
                head = sorted(own[name][:rerank_k], key=lambda one, scores=scores: -scores[one])
                own[f"{name} + {model}"] = head + own[name][rerank_k:]
    return found


def time_all(path: Path, searchers: dict[str, Any], data: AnswerSet, args: Any) -> dict[str, dict[str, float]]:
    """Medians of each way's milliseconds by the clock and of the processor, under "clock" and "processor".

    Of cross-encoders that differ in their seed the first is timed.
    """
    if path.exists():
        return json.loads(path.read_text())
    ways = {
        f"{name}{f' + {row}, {k}' if row else ''}": (searchers[model], stage, k)
        for row, model in {"": "", **{row: own[0] for row, own in group_seeds(args.cross_encoder).items()}}.items()
        for stage, name in FIRST.items()
        if not row or stage in args.rerank
        for k in (args.timed_k if row else [0])
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
    reranked: Sequence[str],
    args: Any,
) -> None:
    right = [
        {data.answer_ids[row].as_py() for row in range(r.start, r.stop) if data.labels[row]}
        for r in data.question_slices()
    ]
    found = [{**own, **blend(own, args.cross_encoder, args.rerank_k, reranked)} for own in found]
    figures = {way: measure_retrieval([ids[way] for ids in found], right) for way in found[0]}
    groups = group_seeds(args.cross_encoder)
    rows = {name: stack([figures[name]]) for name in FIRST.values()}
    for row, own in groups.items():
        for sign in ("+", BLENDED):
            for name in reranked:
                rows[f"{name} {sign} {row}"] = stack([figures[f"{name} {sign} {model}"] for model in own])
    counts = f"{data.num_questions:,} questions, {len(searchers[''].index):,} answers"
    tables = [f"{data.name} {args.split}: {counts}; re-ranked: {args.rerank_k}", ""]
    tables += tabulate_quality(rows, latency, args.rerank_k)
    if len(groups) > 1:
        by_stage = {
            f"{name} {sign}": {row: rows[f"{name} {sign} {row}"][MRR] for row in groups}
            for sign in ("+", BLENDED)
            for name in reranked
        }
        tables += ["", f"MRR - {next(iter(groups))}", "", *tabulate_differences(by_stage)]
    if more := [(way, f"{own['clock']:.1f}", f"{own['processor']:.1f}") for way, own in latency.items() if "," in way]:
        tables += ["", "latency by how many are re-ranked", "", *as_markdown(("", "ms", "processor ms"), more)]
    print("\n".join(tables))
    write_atomically(path, "\n".join(tables) + "\n")
    means = {way: {metric: float(own[metric].mean()) for metric in RETRIEVAL_METRICS} for way, own in rows.items()}
    _common.report("search", {"means": means, "latency": latency})


def blend(
    found: dict[str, list[str]], models: Sequence[str], rerank_k: int, reranked: Sequence[str]
) -> dict[str, list[str]]:
    """The fusion of each first stage's order with that of each cross-encoder, among the candidates that it ranked."""
    from serve.search import fuse

    blended = {}
    for model in models:
        for name in reranked:
            before, after = found[name], found[f"{name} + {model}"][:rerank_k]
            places = [
                np.array([before.index(one) for one in own], dtype=np.int64) for own in (before[:rerank_k], after)
            ]
            order, _ = fuse([(own, own) for own in places], len(after))
            blended[f"{name} {BLENDED} {model}"] = [before[place] for place in order] + before[rerank_k:]
    return blended


def stack(seeds: Sequence[Figures]) -> Figures:
    """Each metric as ``[seeds, questions]``."""
    return {metric: np.stack([own[metric] for own in seeds]) for metric in RETRIEVAL_METRICS}


def tabulate_quality(rows: dict[str, Figures], latency: dict[str, dict[str, float]], rerank_k: int) -> list[str]:
    """A line for each way: its figures, ``[seeds, questions]``, the difference to the first, and its milliseconds."""
    tests = compare_rows([own[MRR] for own in rows.values()])
    lines = []
    for (way, own), test in zip(rows.items(), tests, strict=True):
        of_seed = own[MRR].mean(axis=1)
        spread = f" ({of_seed.std(ddof=1):.3f})" if len(of_seed) > 1 else ""
        times = latency.get(way) or latency.get(f"{way.replace(BLENDED, '+')}, {rerank_k}")
        lines.append(
            (
                way,
                f"{of_seed.mean():.3f}{spread}",
                *(f"{own[metric].mean():.3f}" for metric in RETRIEVAL_METRICS[1:]),
                "" if test is None else f"{test['difference']:+.3f}",
                "" if test is None else format_p(test["corrected"]),
                *(f"{times[of]:.1f}" if times else "" for of in ("clock", "processor")),
            )
        )
    header = ("", "MRR", "R@1", "R@5", "R@10", "MRR - bi-encoder", "p", "ms", "processor ms")
    return as_markdown(header, lines)


def tabulate_differences(by_stage: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Each cross-encoder against the first, after each first stage; MRR ``[seeds, questions]`` of each.

    The corrected p is the greater of both, by Holm's method for all lines of the table.
    """
    ways, tests = [], []
    for stage, rows in by_stage.items():
        for row, test in zip(rows, compare_rows(list(rows.values())), strict=True):
            if test is not None:
                ways.append(f"{stage} {row}")
                tests.append(test)
    columns = [[f"{test['difference']:+.3f}" for test in tests]]
    columns += [[format_p(test[of]) if of in test else "" for test in tests] for of in (OVER_QUESTIONS, OVER_SEEDS)]
    columns.append([format_p(p) for p in correct_greater([list_p(test) for test in tests])])
    header = ("", "difference", "p over questions", "p over seeds", "corrected")
    return as_markdown(header, list(zip(ways, *columns, strict=True)))


def as_markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows)]


if __name__ == "__main__":
    _common.run(main)
