"""Gathers the report of an experiment or a study from the folders of its runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet
from finetune.data.registry import get_paper_counts
from finetune.evaluation.bm25 import score_bm25
from finetune.evaluation.metrics import MAP, METRICS, Figures, compute_question_metrics
from finetune.evaluation.significance import compare_rows, is_established, take_greater_p
from finetune.evaluation.trec import read_run
from finetune.training.config import FinetuneConfig
from pretrain.runtime.log import complete_lines

from .plots import Curve
from .report import (
    Curves,
    Noise,
    Report,
    ResultRow,
    SplitFigures,
    count_split,
    pick_examples,
    write_report,
)

NUM_EXAMPLES = 8
BM25 = "BM25"


@dataclass(frozen=True)
class Entry:
    """One experiment on the page.

    figures: for each seed, the metrics of every test question
    paper:   a paper's figures by metric
    tanda:   whether the experiment transfers first
    """

    name: str
    config: FinetuneConfig
    figures: list[Figures]
    paper: dict[str, float]
    tanda: bool = False


def write_page(
    path: Path, title: str, notes: list[str], splits: Sequence[tuple[AnswerSet, str]], entries: list[Entry]
) -> None:
    """Writes the page of experiments that share their data, and of BM25.

    splits: each with the filter that it has been through, the test set last

    Raises KinspanError where ``path`` cannot be written.
    """
    test = splits[-1][0]
    bm25 = compute_question_metrics(test, score_bm25(test))
    named = [*((entry.name, entry.figures, entry.paper) for entry in entries), (BM25, [bm25], {})]
    tests = compare_rows([np.stack([seed[MAP] for seed in figures]) for _, figures, _ in named])
    rows = []
    for (name, figures, paper), difference in zip(named, tests, strict=True):
        means = {m: np.array([seed[m].mean() for seed in figures]) for m in METRICS}
        p = {MAP: take_greater_p(difference)} if difference else {}
        starred = [MAP] if difference and is_established(difference) else []
        rows.append(ResultRow(name, means, p, {m: (v, None) for m, v in paper.items()}, starred))
    write_report(
        path,
        Report(
            title,
            notes,
            [_count_beside_paper(data, mode) for data, mode in splits],
            rows,
            [_read_curves(entry) for entry in entries],
            _gather_noise(entries),
            _pick_examples(test, entries),
        ),
    )


def _count_beside_paper(data: AnswerSet, mode: str) -> SplitFigures:
    papers = get_paper_counts(data, mode)
    paper = papers[0] if papers else None
    return count_split(data, mode, paper.questions if paper else None, paper.pairs if paper else None)


def read_curve(folder: Path, split: str, figure: str, over: str = "step") -> Curve:
    """Returns how a figure of a run's ``metrics.jsonl`` went, the start included, over the steps or epochs."""
    lines = [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
    lines = [line for line in lines if line["split"] == split and figure in line]
    return np.array([line[over] for line in lines]), np.array([line[figure] for line in lines])


def _read_curves(entry: Entry) -> Curves:
    folders = [Path(entry.config.output_dir) / f"seed-{seed}" for seed in range(1, entry.config.seeds + 1)]
    loss, dev, test = (
        [read_curve(folder, *which) for folder in folders] for which in (("train", "loss"), ("dev", MAP), ("test", MAP))
    )
    return Curves(entry.name, loss, dev, test if entry.config.test_every_validation else None)


def _gather_noise(entries: list[Entry]) -> list[Noise]:
    """Returns a curve for fine-tuning and one for TANDA, if any experiment flips labels."""
    if not any(entry.config.label_noise for entry in entries):
        return []
    lines = []
    for name, tanda in (("fine-tuning", False), ("TANDA", True)):
        own = sorted((e for e in entries if e.tanda == tanda), key=lambda e: e.config.label_noise)
        if own:
            maps = [np.array([seed[MAP].mean() for seed in e.figures]) for e in own]
            lines.append(Noise(name, [e.config.label_noise for e in own], maps))
    return lines


def _pick_examples(test: AnswerSet, entries: list[Entry]) -> list[Any]:
    """Picks the questions on which the last experiment, with seed 1, gains most; of a single one, the worst."""
    last = entries[-1]
    own = last.figures[0][MAP]
    gain = own - entries[0].figures[0][MAP] if len(entries) > 1 else -own
    run = read_run(Path(last.config.output_dir) / "seed-1" / test.split / "run.txt")
    of_question = (test.question_ids[q] for q in test.question_of)
    scores = np.array([run[q][a] for q, a in zip(of_question, test.answer_ids.to_pylist(), strict=True)])
    return pick_examples(test, scores, np.argsort(-gain, kind="stable")[:NUM_EXAMPLES].tolist())
