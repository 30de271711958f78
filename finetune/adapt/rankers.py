"""The rankers that an adaptation compares: their scores out of fold, their cost, and how they are made for good."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.matching import count_chars
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, WordCounts, score_bm25_by
from finetune.evaluation.metrics import MAP, MRR_10, RECALLS, compute_question_metrics
from finetune.ranking.embedder import Embedder
from finetune.ranking.fusion import combine, find_folder
from finetune.ranking.kinds import BI_ENCODER, CROSS_ENCODER, find_kind
from finetune.ranking.model import load_model, score_answers
from finetune.training.config import CONTRASTIVE
from finetune.training.stages import fingerprint_answers
from pretrain.modeling.pair_model import holds_no_weights, list_weights
from pretrain.release.folder import fingerprint_model

from .folds import EPOCHS, MIN_FOLDS, VALIDATIONS, Training, count_epoch, train_in_folds, train_on_all
from .fusion import fit_weights, fuse_out_of_fold
from .passages import cache_array
from .questions import Questions

log = logging.getLogger(__name__)

PRETRAINED = "the pre-trained model, without labels"
TUNED_BI_ENCODER = "the fine-tuned bi-encoder"
TUNED = "the fine-tuned cross-encoder"
PRETRAINED_AND_TUNED = "the pre-trained and fine-tuned cross-encoder"
FUSION, FUSION_OF_ALL = "the fusion of BM25 and the bi-encoder", "the fusion of BM25, bi-encoder and cross-encoder"
TIMED_QUESTIONS = 8
PRETRAINED_TOKENS = 32 * 64  # of an update of pre-training
CHARS_PER_TOKEN = 4
# Share of the pre-training's tokens that a fine-tuning may take, the fewest updates worth it, and the batch size
BI_ENCODER_PLAN, CROSS_ENCODER_PLAN = (0.4, 8, 16), (0.3, 40, 32)


@dataclass(frozen=True)
class Ranker:
    """A ranker, and its scores ``[N]`` of the questions that rankers score, out of fold if it is trained.

    role:     "BM25", "bi-encoder", "cross-encoder" or "fusion"
    model:    a folder or hub name; for a trained one that of its start
    training: how it is trained, if it is, and ``updates`` how long
    weights:  of a fusion, by the roles of its ``parts``
    by_rank:  whether a fusion adds up reciprocal ranks, instead of standardised scores
    """

    name: str
    role: str
    model: str
    scores: np.ndarray
    training: Training | None = None
    updates: int = 0
    parts: tuple["Ranker", ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    by_rank: bool = False

    def measure(self, data: AnswerSet) -> np.ndarray:
        """Returns the average precision ``[Q]`` of each of these questions, the first of those that it has scored."""
        return compute_question_metrics(data, self.scores[: data.num_pairs], (MAP,))[MAP]

    def measure_search(self, questions: Questions) -> dict[str, float]:
        """Returns MRR@10 and R@10 of a search of all paragraphs, if there is one; BM25 has their word counts."""
        if not questions.searched.any():
            return {}
        scores, found = self.scores, questions.found
        if self.role == BM25:
            scores, found = questions.words, found & (questions.words > 0)
        elif self.by_rank:
            parts = {part.role: questions.words if part.role == BM25 else part.scores for part in self.parts}
            weights = {**self.weights, BM25: 0.9999}  # ties go to the model, as in a search
            scores = combine(parts, weights, questions.scored.starts, by_rank=True)
        figures = compute_question_metrics(questions.scored, scores, (MRR_10, RECALLS[-1]), found)
        return {name: float(values[questions.searched].mean()) for name, values in figures.items()}


@dataclass(frozen=True)
class ScoreCache:
    """Scores candidates by any ranker; the scores of models (not of BM25) are cached in ``folder``."""

    words: WordCounts
    folder: Path

    def rank(self, name: str, role: str, model: str, data: AnswerSet) -> Ranker:
        return Ranker(name, role, model, self.score(model, data))

    def score(self, model: str, data: AnswerSet) -> np.ndarray:
        if model == BM25:
            return score_bm25_by(self.words, data)
        key = f"{fingerprint_model(model)} {fingerprint_answers(data)}"
        return cache_array(self.folder, key, partial(score_answers, model, data))

    def score_ranker(self, ranker: Ranker, data: AnswerSet) -> np.ndarray:
        """Returns the scores of other questions by a ranker that ``finish`` has returned."""
        if ranker.parts:
            scores = {part.role: self.score(part.model, data) for part in ranker.parts}
            return combine(scores, ranker.weights, data.starts, ranker.by_rank)
        return self.score(ranker.model, data)


def name_base(model: str) -> str:
    """Returns the name of the base model among the rankers."""
    return f"{shorten_name(model)} as it is"


def name_fused(model: str) -> str:
    """Returns the name of the rank fusion of BM25 and the base model among the rankers."""
    return f"rank fusion of {BM25} and {name_base(model)}"


def list_untrained(model: str, data: AnswerSet, cache: ScoreCache) -> Iterator[Ranker]:
    """Yields BM25 and, if the base model can rank, that and the rank fusion of both."""
    words = cache.rank(BM25, BM25, BM25, data)
    yield words
    try:
        if holds_no_weights(model):
            raise KinspanError(f"{model} holds no weights")
        base = cache.rank(name_base(model), find_kind(model), model, data)
    except KinspanError as error:
        log.info("%s ranks nothing as it is: %s", shorten_name(model), error)
        return
    yield base
    weights = {BM25: 1.0, base.role: 1.0}
    fused = combine({BM25: words.scores, base.role: base.scores}, weights, data.starts, by_rank=True)
    yield Ranker(name_fused(model), "fusion", "", fused, None, 0, (words, base), weights, True)


def plan_trainings(model: str, pretrained: str, questions: Questions, updates: int) -> Iterator[Training]:
    """Yields the fine-tunings, of a bi-encoder and two cross-encoders, that the budget pays for.

    updates: the pre-training's number of updates; all fine-tunings together may cost about as much again
    """
    has_negatives = bool((questions.train.labels == 0).any())
    negatives = {"negatives_ratio": 3.0} if has_negatives else {"negatives_per_question": 4, "negatives_from": "corpus"}
    asked, answered = (
        float(np.mean([count_chars(text) for text in texts])) / CHARS_PER_TOKEN
        for texts in (questions.train.questions, questions.texts)
    )
    for name, base, settings, tokens, (share, least, batch_size) in (
        (TUNED_BI_ENCODER, model, {"loss": CONTRASTIVE, "own_negatives": 1}, asked + 2 * answered, BI_ENCODER_PLAN),
        (TUNED, model, negatives, asked + answered, CROSS_ENCODER_PLAN),
        (PRETRAINED_AND_TUNED, pretrained, negatives, asked + answered, CROSS_ENCODER_PLAN),
    ):
        training = Training(name, base, {**settings, "batch_size": batch_size}, VALIDATIONS, MIN_FOLDS)
        paid = share * updates * PRETRAINED_TOKENS / (batch_size * tokens)  # updates, of all folds together
        longest = EPOCHS * count_epoch(training, questions)
        needed = min(least, longest)
        num_folds = questions.num_folds if paid >= needed * (1 + questions.num_folds) else MIN_FOLDS
        if paid < needed * (1 + num_folds):
            log.info("%s: left out, it takes %.1f times the --budget", name, needed * (1 + num_folds) / paid)
            continue
        max_updates = int(min(longest, paid / (1 + num_folds)))
        yield replace(training, max_updates=-(-max_updates // VALIDATIONS) * VALIDATIONS, num_folds=num_folds)


def train_rankers(
    trainings: Iterable[Training], starts: Mapping[str, Ranker], questions: Questions, folder: Path
) -> Iterator[Ranker]:
    """Fine-tunes each ranker in folds, and yields it with its scores out of fold.

    starts: the untrained rankers by role and model, from which some of the trainings start
    """
    for training in trainings:
        role = BI_ENCODER if training.settings.get("loss") == CONTRASTIVE else CROSS_ENCODER
        counts = training.num_folds, training.max_updates
        log.info("training %s: %d folds of at most %d updates", training.name, *counts)
        start = starts.get(f"{role} {training.model}")
        scores, updates = train_in_folds(training, questions, folder, start.scores if start else None)
        yield Ranker(training.name, role, training.model, scores, training, updates)


def fuse_rankers(rankers: list[Ranker], questions: Questions) -> Iterator[Ranker]:
    """Yields the learned fusions of BM25 and the bi-encoder, and of both and the best cross-encoder.

    Their weights are fitted out of fold, too.
    """
    data, fold_of = questions.judging, questions.assign_folds(questions.num_folds)[questions.asked]
    single = [ranker for ranker in reversed(rankers) if not ranker.parts]  # so that the first of equals is the best
    best = {ranker.role: ranker for ranker in sorted(single, key=lambda ranker: ranker.measure(data).mean())}
    for name, roles in ((FUSION, (BM25, BI_ENCODER)), (FUSION_OF_ALL, (BM25, BI_ENCODER, CROSS_ENCODER))):
        if best.keys() >= set(roles):
            parts = tuple(best[role] for role in roles)
            scores = {part.role: part.scores for part in parts}
            fused = fuse_out_of_fold(questions.scored, scores, fold_of, questions.judged)
            weights = fit_weights(data, {role: part[: data.num_pairs] for role, part in scores.items()})
            yield Ranker(name, "fusion", "", fused, parts=parts, weights=weights)


def finish(ranker: Ranker, questions: Questions, folder: Path) -> Ranker:
    """Returns the ranker, or the fusion's parts, trained on all questions."""
    if ranker.parts:
        return replace(ranker, parts=tuple(finish(part, questions, folder) for part in ranker.parts))
    if ranker.training is None:
        return ranker
    return replace(ranker, model=train_on_all(ranker.training, ranker.updates, questions, folder))


class Cost(NamedTuple):
    """Holds what a ranker costs in use: milliseconds per question on this machine, and megabytes of weights."""

    ms: float
    megabytes: float


class CostMeter:
    """Measures the cost of rankers, one for each role: models of one architecture take the same time."""

    def __init__(self, data: AnswerSet, words: WordCounts) -> None:
        self.data, self.words = data.take(np.arange(min(TIMED_QUESTIONS, data.num_questions))), words
        self.measured: dict[str, Cost] = {}

    def measure(self, ranker: Ranker) -> Cost:
        """Returns the cost of scoring a question's candidates, whose vectors a bi-encoder has in the index."""
        if ranker.parts:
            costs = [self.measure(part) for part in ranker.parts]
            return Cost(sum(cost.ms for cost in costs), sum(cost.megabytes for cost in costs))
        if ranker.role not in self.measured:
            score = self._load(ranker)
            score()  # warms up
            began = time.perf_counter()
            score()
            ms = 1000 * (time.perf_counter() - began) / self.data.num_questions
            weights = [] if ranker.role == BM25 else list_weights(Path(find_folder(ranker.model)))
            loaded = (file.stat().st_size for file in weights if file.suffix == weights[0].suffix)  # of two forms, one
            self.measured[ranker.role] = Cost(ms, sum(loaded) / 1e6)
        return self.measured[ranker.role]

    def _load(self, ranker: Ranker) -> Callable[[], object]:
        """Returns a function that ranks the questions by the ranker."""
        if ranker.role == BM25:
            return partial(score_bm25_by, self.words, self.data)
        if ranker.role == BI_ENCODER:
            return partial(Embedder(ranker.model).embed_queries, self.data.questions)
        return partial(load_model(ranker.model).score, self.data)
