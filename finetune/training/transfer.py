"""Measures every source (ranker) on every target (test set), zero-shot: a file for each cell, and a table.

A cell is measured again only if its model or data changed, so that a matrix can grow by new sources and targets.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from data_pipeline.matching import WORD, write_bigrams
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN
from finetune.data.registry import find_measure, load_filtered
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.metrics import MAP, P_1, TITLES, compute_question_metrics
from finetune.ranking.model import score_answers
from pretrain.release.folder import fingerprint_model

from .stages import fingerprint_answers, fingerprint_identity

log = logging.getLogger(__name__)


def score_tf_idf(data: AnswerSet) -> np.ndarray:
    """Returns the cosine ``[N]`` of TF-IDF vectors; frequencies are those of the distinct candidates of ``data``."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    distinct = data.answers.dictionary_encode()
    try:
        vectors = TfidfVectorizer(stop_words="english", sublinear_tf=True, token_pattern=WORD)
        texts = map(write_bigrams, distinct.dictionary.to_pylist())
        answers = vectors.fit_transform(texts)[distinct.indices.to_numpy()]
    except ValueError:  # no candidate has a word
        return np.zeros(data.num_pairs)
    questions = vectors.transform(map(write_bigrams, data.questions))[data.question_of]
    return np.asarray(questions.multiply(answers).sum(axis=1)).ravel()


TF_IDF = "TF-IDF"
BASELINES = {BM25: score_bm25, TF_IDF: score_tf_idf}  # by row name, which no source may have

Rows = dict[str, list[float]]  # by source or baseline, the figure on each target


@dataclass(frozen=True)
class Target:
    """A test set. Its ``metric`` is MAP, or P_1, which papers call accuracy."""

    name: str
    data: AnswerSet
    metric: str


def load_targets(specs: Mapping[str, str], split: str, accuracy: list[str]) -> list[Target]:
    """Returns the test sets of ``specs``, by name, with the questions that papers measure on or the clean ones.

    accuracy: names of targets to measure by P@1, besides those for which papers use it
    """
    if unknown := [name for name in accuracy if name not in specs]:
        raise KinspanError(f"--accuracy {unknown[0]}: not among --targets")
    targets = []
    for name, spec in specs.items():
        papers_use_p_1, papers_filter = find_measure(spec)
        metric = P_1 if name in accuracy or papers_use_p_1 else MAP
        targets.append(Target(name, load_filtered(spec, split, papers_filter or CLEAN), metric))
    return targets


def measure_matrix(sources: Mapping[str, str], targets: list[Target], cells: Path, max_length: int | None) -> Rows:
    """Measures the cells that are missing, and returns all: the best source on average first, then baselines.

    sources: name -> model
    cells:   folder with a file for each cell: the figures of every question
    """

    def measure(name: str, model: str | None, target: Target) -> float:
        ranker = {"model": fingerprint_model(model), "max_length": max_length} if model else {"name": name}
        identity = {"data": fingerprint_answers(target.data), **ranker}
        path = cells / (re.sub(r"[^\w.]+", "-", f"{name}-{target.name}") + f"-{fingerprint_identity(identity)}.json")
        if not path.exists():
            log.info("%s on %s: %s questions", name, target.name, target.data.num_questions)
            scores = score_answers(model, target.data, max_length) if model else BASELINES[name](target.data)
            figures = compute_question_metrics(target.data, scores, (MAP, P_1))
            cells.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({metric: values.tolist() for metric, values in figures.items()}) + "\n")
        return float(np.mean(read_object(path, "delete it to have it measured again")[target.metric]))

    rows = {name: [measure(name, model, target) for target in targets] for name, model in sources.items()}
    baselines = {name: [measure(name, None, target) for target in targets] for name in BASELINES}
    return dict(sorted(rows.items(), key=lambda row: -sum(row[1]))) | baselines


def format_matrix(targets: list[Target], rows: Rows) -> str:
    """Returns the rows in Markdown; the best of each target is bold."""
    best = [max(column) for column in zip(*rows.values(), strict=True)]
    lines = [["", *(f"{t.name} ({TITLES[t.metric]})" for t in targets)], ["---", *["---:"] * len(targets)]]
    for name, values in rows.items():
        cells = [f"{value:.3f}".removeprefix("0") for value in values]
        marks = ["**" if value == top else "" for value, top in zip(values, best, strict=True)]
        lines.append([name, *(f"{mark}{cell}{mark}" for mark, cell in zip(marks, cells, strict=True))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
