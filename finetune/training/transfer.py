"""Every source on every target, zero-shot: a file for each cell, a table and CSV.

A cell that was measured is not measured again as long as model and data are the same, so that a matrix grows by the
sources and targets that are new.
"""

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN
from finetune.data.registry import find_measure, load_filtered
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.metrics import MAP, P_1, TITLES, compute_question_metrics
from finetune.ranking.model import score_answers
from pretrain.release.folder import fingerprint_model

from .stages import fingerprint_answers

log = logging.getLogger(__name__)

TF_IDF = "TF-IDF"
IN_DOMAIN = "in-domain"
BASELINES = (BM25, TF_IDF, IN_DOMAIN)  # names of rows that no source may have
SEED = 0  # of samples


@dataclass(frozen=True)
class Target:
    """A test set.

    metric: MAP, or P_1 ("accuracy" in the paper)
    """

    name: str
    data: AnswerSet
    metric: str


@dataclass(frozen=True)
class Matrix:
    """The measured values.

    values:    of each source ``[T]``, by each target's metric
    baselines: likewise, NaN where there is none
    """

    targets: list[Target]
    values: dict[str, np.ndarray]
    baselines: dict[str, np.ndarray]


def load_targets(
    specs: Mapping[str, str], split: str, accuracy: set[str], max_questions: int | None = None
) -> list[Target]:
    """Returns the test sets by name, with the questions that papers measure on, or else the clean ones.

    specs:         name -> NAME=PLACE as of ``registry.load_split``
    accuracy:      names of those that are measured by P@1, beside the data sets that papers measure so
    max_questions: a sample of so many questions of each, always the same ones; None: all
    """
    if unknown := sorted(accuracy - set(specs)):
        raise KinspanError(f"--accuracy {' '.join(unknown)}: not among --targets, which are {', '.join(specs)}")
    targets = []
    for name, spec in specs.items():
        by_accuracy, measured_on = find_measure(spec)
        data = load_filtered(spec, split, measured_on or CLEAN)
        if max_questions is not None and data.num_questions > max_questions:
            data = data.take(np.sort(np.random.default_rng(SEED).permutation(data.num_questions)[:max_questions]))
        targets.append(Target(name, data, P_1 if name in accuracy or by_accuracy else MAP))
    return targets


def measure_matrix(
    sources: Mapping[str, str], targets: list[Target], in_domain: Mapping[str, str], cells: Path, max_length: int
) -> Matrix:
    """Measures the cells that are missing, and returns all of them.

    sources:   name -> model
    in_domain: target's name -> a model that was fine-tuned on the target's training set
    cells:     folder of a file for each cell, with the figures of every question
    """

    def measure(name: str, model: str | None, score: Callable[[AnswerSet], np.ndarray], target: Target) -> float:
        known = {"model": fingerprint_model(model), "max_length": max_length} if model else {"name": name}
        made_of = json.dumps({"data": fingerprint_answers(target.data), **known}, sort_keys=True)
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:12]
        path = cells / (re.sub(r"[^\w.]+", "-", f"{name}-{target.name}") + f"-{fingerprint}.json")
        if not path.exists():
            log.info("%s on %s: %s questions", name, target.name, target.data.num_questions)
            figures = compute_question_metrics(target.data, score(target.data), (MAP, P_1))
            cells.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({metric: values.tolist() for metric, values in figures.items()}) + "\n")
        return float(np.mean(read_object(path, "delete it to have it measured again")[target.metric]))

    def measure_model(name: str, model: str, target: Target) -> float:
        return measure(name, model, partial(score_answers, model, max_length=max_length), target)

    values = {name: np.array([measure_model(name, model, t) for t in targets]) for name, model in sources.items()}
    untrained = {BM25: score_bm25, TF_IDF: score_tf_idf}
    baselines = {n: np.array([measure(n, None, score, t) for t in targets]) for n, score in untrained.items()}
    if in_domain:
        models = [in_domain.get(t.name) for t in targets]
        figures = [measure_model(IN_DOMAIN, m, t) if m else np.nan for t, m in zip(targets, models, strict=True)]
        baselines[IN_DOMAIN] = np.array(figures)
    return Matrix(targets, values, baselines)


def score_tf_idf(data: AnswerSet) -> np.ndarray:
    """Returns the cosine ``[N]`` of TF-IDF vectors; frequencies are those of the distinct candidates of ``data``."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    distinct = data.answers.dictionary_encode()
    try:
        vectors = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        answers = vectors.fit_transform(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
    except ValueError:  # no candidate has a word
        return np.zeros(data.num_pairs)
    questions = vectors.transform(data.questions)[data.question_of]
    return np.asarray(questions.multiply(answers).sum(axis=1)).ravel()


def format_matrix(matrix: Matrix) -> str:
    """Returns the values in Markdown: sources, the best on average first, then baselines; a target's best is bold."""
    sources = sorted(matrix.values.items(), key=lambda entry: -float(entry[1].mean()))
    ranked = [*sources, *matrix.baselines.items()]
    best = np.nanmax([values for _, values in ranked], axis=0)

    def cell(value: float, best: float) -> str:
        text = "" if np.isnan(value) else f"{value:.3f}".removeprefix("0")
        return f"**{text}**" if value == best else text

    rows = [[name, *map(cell, values, best)] for name, values in ranked]
    header = ["", *(f"{t.name} ({TITLES[t.metric]})" for t in matrix.targets)]
    lines = [header, ["---", *["---:"] * len(matrix.targets)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_csv(matrix: Matrix) -> str:
    """Returns CSV with a line of each cell and baseline: source, target, metric, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "target", "metric", "value"])
    for column, target in enumerate(matrix.targets):
        for name, values in {**matrix.values, **matrix.baselines}.items():
            if not np.isnan(values[column]):
                writer.writerow([name, target.name, target.metric, round(float(values[column]), 6)])
    return text.getvalue()
