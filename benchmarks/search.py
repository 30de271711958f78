"""Measures search: BM25, the bi-encoder and their fusion, each re-ranked by cross-encoders or not.

Quality: MRR and R@1, R@5, R@10 over the questions of a data set, among the 100 answers that the first stage gives; a
paired randomisation test of MRR against the bi-encoder alone, with Holm's correction.
Cross-encoders whose folders differ in seed-N alone are one row, the mean of the seeds; after "&" the order of the first
stage and that of the cross-encoder are fused. Latency: the median over some questions, one at a time.

With --candidates_to it writes what the bi-encoder finds as a split of files=, to choose a cross-encoder by."""

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tqdm import tqdm

from benchmarks import _common
from data_pipeline.core.files import write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.registry import SPECS, load_split
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS
from finetune.evaluation.named_metrics import measure_retrieval
from finetune.evaluation.significance import compare_rows, format_p

FIRST = {"bi_encoder": "bi-encoder", "bm25": "BM25", "fusion": "fusion"}
BATCH, TIMED = 16, 20  # questions that are searched together, and alone for the time

EPILOG = f"""example:
  kinspan index --answers insuranceqa=InsuranceQA --output_dir index
  python benchmarks/search.py --index index --data insuranceqa=InsuranceQA \\
      --cross_encoder runs/insuranceqa/seed-1/best

{SPECS}"""


def list_right(data: AnswerSet) -> list[set[str]]:
    """Returns the ids of each question's right answers."""
    rows = data.question_slices()
    return [{data.answer_ids[row].as_py() for row in range(r.start, r.stop) if data.labels[row]} for r in rows]


def write_candidates(searcher: Any, data: AnswerSet, count: int, path: Path) -> None:
    """Writes the first ``count`` answers that the bi-encoder finds, with right ones among them or not."""
    hits = searcher.search(data.questions, count).hits
    lines = []
    for name, question, right, ranked in zip(data.question_ids, data.questions, list_right(data), hits, strict=True):
        for hit in ranked:
            line = {"question_id": name, "question": question, "answer_id": hit.id, "answer": hit.text}
            lines.append(json.dumps({**line, "label": int(hit.id in right)}, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lines)


def find_batch(
    searchers: dict[str, Any], questions: Sequence[str], rerank_k: int, reranked: Sequence[str]
) -> list[dict[str, list[str]]]:
    """Returns the ids that each way finds for each question, best first. A cross-encoder scores a candidate of several
    stages once."""
    from finetune.ranking.retrieval import fuse

    first = {name: searchers[""].search(questions, 100, first_stage=stage).hits for stage, name in FIRST.items()}
    numbers = range(len(questions))
    ranked = [{name: [hit.id for hit in of[number]] for name, of in first.items()} for number in numbers]
    heads = [{hit.id: hit.text for name in reranked for hit in first[name][n][:rerank_k]} for n in numbers]
    for model, searcher in searchers.items():
        if not model:
            continue
        scored = searcher.cross_encoder.score(questions, [list(texts.values()) for texts in heads])
        for ids, texts, values in zip(ranked, heads, scored, strict=True):
            scores = dict(zip(texts, values, strict=True))
            for name in reranked:
                head, tail = ids[name][:rerank_k], ids[name][rerank_k:]
                order = np.argsort([-scores[answer] for answer in head], kind="stable")
                fused, _ = fuse([(places, places) for places in (np.arange(len(head)), order)], len(head))
                ids[f"{name} + {model}"] = [head[place] for place in order] + tail
                ids[f"{name} & {model}"] = [head[place] for place in fused] + tail
    return ranked


def time_ways(searchers: dict[str, Any], questions: Sequence[str], rerank_k: int) -> dict[str, float]:
    """Returns the median milliseconds of each first stage, alone and re-ranked."""

    def search(number: int, searcher: Any, stage: str) -> None:
        searcher.search([questions[number]], 3, rerank_k if searcher.cross_encoder else 0, stage)

    ways = {
        f"{name}{f' + {model}' if model else ''}": partial(search, searcher=searcher, stage=stage)
        for model, searcher in searchers.items()
        for stage, name in FIRST.items()
    }
    return {way: 1000 * s for way, s in _common.take_turns(ways, len(questions) // 2).items()}


def tabulate(ranked: Sequence[dict[str, list[str]]], right: Sequence[set[str]], latency: dict[str, float]) -> list[str]:
    """Returns a table in Markdown: figures of each row, and its difference to the first. Seeds share a row."""
    rows: dict[str, list[str]] = {}
    for way in ranked[0]:
        rows.setdefault(re.sub(r"/seed-\d+(/.*)?$", "", way), []).append(way)
    figures = {way: measure_retrieval([ids[way] for ids in ranked], right) for way in ranked[0]}
    stacked = {
        row: {m: np.stack([figures[w][m] for w in ways]) for m in RETRIEVAL_METRICS} for row, ways in rows.items()
    }
    tests = compare_rows([of[MRR] for of in stacked.values()])
    lines: list[tuple[str, ...]] = [("", "MRR", "R@1", "R@5", "R@10", "MRR - bi-encoder", "p", "ms"), ("---",) * 8]
    for (row, of), test in zip(stacked.items(), tests, strict=True):
        of_seed = of[MRR].mean(axis=1)
        spread = f" ({of_seed.std(ddof=1):.3f})" if len(of_seed) > 1 else ""
        recalls = [f"{of[metric].mean():.3f}" for metric in RETRIEVAL_METRICS[1:]]
        difference = (f"{test['difference']:+.3f}", format_p(test["corrected"])) if test else ("", "")
        ms = latency.get(rows[row][0].replace(" & ", " + "))
        lines.append((row, f"{of_seed.mean():.3f}{spread}", *recalls, *difference, f"{ms:.1f}" if ms else ""))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--index", required=True, help="Index of all answers of the data set.")
    parser.add_argument("--data", required=True, help="Data set, as below, whose questions are asked.")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="test")
    parser.add_argument("--cross_encoder", nargs="*", default=[], help="What ranks the candidates again, any number.")
    parser.add_argument("--rerank_k", type=int, default=30, help="Candidates that it ranks.")
    parser.add_argument("--rerank", nargs="+", choices=tuple(FIRST), default=list(FIRST), help="After which.")
    parser.add_argument("--questions", type=int, help="Ask so many, drawn by chance. Without it: all.")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="Of the cross-encoders.")
    parser.add_argument("--candidates_to", type=Path, help="Write the bi-encoder's candidates there instead.")
    args = parser.parse_args()
    from serve.search import Searcher

    data = load_split(args.data, args.split)
    order = np.random.Generator(np.random.Philox(0)).permutation(data.num_questions)  # fewer are the first of more
    data = data.take(order[: args.questions])
    searchers = {"": Searcher(args.index)}
    if args.candidates_to:
        write_candidates(searchers[""], data, args.rerank_k, args.candidates_to / f"{args.split}.jsonl")
        return
    searchers |= {name: Searcher(args.index, name, precision=args.precision) for name in args.cross_encoder}
    ranked: list[dict[str, list[str]]] = []
    for start in tqdm(range(0, data.num_questions, BATCH), desc="searching", disable=None, mininterval=5):
        questions = data.questions[start : start + BATCH]
        ranked += find_batch(searchers, questions, args.rerank_k, [FIRST[stage] for stage in args.rerank])
    latency = time_ways(searchers, data.questions[: 2 * TIMED], args.rerank_k)
    print("\n".join(tabulate(ranked, list_right(data), latency)))


if __name__ == "__main__":
    _common.run(main)
