"""Every source on every target, zero-shot: the scores, a file a cell, and what is beside them.

A cell that was measured is not measured again as long as model and data are the same, so that a matrix grows by the
sources and targets that are new.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN, filter_questions
from finetune.data.registry import find_measure, load_split
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.metrics import MAP, P_1, compute_question_metrics
from finetune.ranking.score import score_answers
from finetune.training.fingerprints import fingerprint_answers, fingerprint_model

TF_IDF = "TF-IDF"
IN_DOMAIN = "in-domain"
SEED = 0  # of samples


@dataclass(frozen=True)
class Target:
    """A test set.

    metric: MAP, or P_1 ("accuracy" in the paper)
    """

    name: str
    data: AnswerSet
    metric: str

    @property
    def fingerprint(self) -> str:
        return fingerprint_answers(self.data)

    @property
    def num_questions(self) -> int:
        return self.data.num_questions


class Column(Protocol):
    """What a matrix tells of a target."""

    @property
    def name(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def num_questions(self) -> int: ...


@dataclass(frozen=True)
class Matrix:
    """What was measured.

    sources:   names
    values:    ``[S, T]`` each target's own metric
    baselines: name -> ``[T]``, NaN where there is none
    """

    sources: list[str]
    targets: Sequence[Column]
    values: np.ndarray
    baselines: dict[str, np.ndarray]


def load_targets(
    specs: Mapping[str, str], split: str, accuracy: set[str], max_questions: int | None = None
) -> list[Target]:
    """The test sets by name, with the questions that papers measure them on, or else those that have a right and a
    wrong candidate, as fine-tuning measures.

    specs:         name -> NAME=PLACE as of ``registry.load_split``
    accuracy:      names of those that are measured by P@1, beside the data sets that papers measure so
    max_questions: a sample of so many questions of each, always the same ones; None: all

    Raises KinspanError where one cannot be read, or ``accuracy`` names none of them.
    """
    if unknown := sorted(accuracy - set(specs)):
        raise KinspanError(f"--accuracy {' '.join(unknown)}: not among --targets, which are {', '.join(specs)}")
    return [_load_target(name, spec, split, name in accuracy, max_questions) for name, spec in specs.items()]


def _load_target(name: str, spec: str, split: str, accuracy: bool, max_questions: int | None) -> Target:
    by_accuracy, measured_on = find_measure(spec)
    data = filter_questions(load_split(spec, split)[0], measured_on or CLEAN)
    return Target(name, _sample(data, max_questions), P_1 if accuracy or by_accuracy else MAP)


def _sample(data: AnswerSet, max_questions: int | None) -> AnswerSet:
    if max_questions is None or data.num_questions <= max_questions:
        return data
    return data.take(np.sort(np.random.default_rng(SEED).permutation(data.num_questions)[:max_questions]))


def measure_matrix(
    sources: Mapping[str, str],
    targets: list[Target],
    in_domain: Mapping[str, str],
    folder: Path,
    max_length: int,
    say: Callable[[str], None],
) -> Matrix:
    """Measures the cells that are missing, and returns all of them.

    sources:   name -> model
    in_domain: target's name -> a model that was fine-tuned on the target's own training set
    folder:    where the cells are kept
    """
    cells = [(name, model, target) for name, model in sources.items() for target in targets]
    values = np.array([_measure(folder, name, model, t, max_length, say) for name, model, t in cells])
    values = values.reshape(len(sources), len(targets))
    baselines = {
        BM25: np.array([_mean(target, score_bm25(target.data)) for target in targets]),
        TF_IDF: np.array([_mean(target, score_tf_idf(target.data)) for target in targets]),
    }
    if in_domain:
        baselines[IN_DOMAIN] = np.array(
            [
                _measure(folder, IN_DOMAIN, in_domain[t.name], t, max_length, say) if t.name in in_domain else np.nan
                for t in targets
            ]
        )
    return Matrix(list(sources), targets, values, baselines)


def _measure(folder: Path, name: str, model: str, target: Target, max_length: int, say: Callable[[str], None]) -> float:
    """One cell's metric, from its file or measured now."""
    path = folder / f"{name_cell(name, target.name)}.json"
    known = {"model": fingerprint_model(model), "data": target.fingerprint, "max_length": max_length}
    found = read_object(path, "delete it to have it measured again") if path.exists() else {}
    if any(found.get(key) != value for key, value in known.items()):
        say(f"{name} on {target.name}: {target.data.num_questions:,} questions")
        figures = compute_question_metrics(target.data, score_answers(model, target.data, max_length))
        found = {"source": name, "target": target.name, **known}
        found |= {metric: float(figures[metric].mean()) for metric in (MAP, P_1)}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found, indent=1) + "\n")
    return float(found[target.metric])


def _mean(target: Target, scores: np.ndarray) -> float:
    return float(compute_question_metrics(target.data, scores)[target.metric].mean())


def score_tf_idf(data: AnswerSet) -> np.ndarray:
    """The cosine ``[N]`` of TF-IDF vectors; frequencies are those of the distinct candidates of ``data``."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    distinct = data.answers.dictionary_encode()
    try:
        vectors = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        answers = vectors.fit_transform(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
    except ValueError:  # no candidate has a word
        return np.zeros(data.num_pairs)
    questions = vectors.transform(data.questions)[data.question_of]
    return np.asarray(questions.multiply(answers).sum(axis=1)).ravel()


def name_cell(source: str, target: str) -> str:
    """The name of a cell's files, without a suffix."""
    return "--".join(re.sub(r"[^\w.]+", "-", name) for name in (source, target))


def average_best(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """``[S]``: the mean of the first k values in this order, for k = 1 .. S, as in figure 3 of the paper."""
    return np.cumsum(values[order]) / np.arange(1, len(values) + 1)
