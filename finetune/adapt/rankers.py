"""The rankers that an adaptation compares, their training, and their scores."""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, WordCounts, score_bm25_by
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.ranking.fusion import NAME as FUSION
from finetune.ranking.fusion import Fitted, fit_fusion
from finetune.ranking.model import score_answers
from finetune.ranking.ranker import find_trained_length
from finetune.training.config import CONTRASTIVE, FinetuneConfig, check
from finetune.training.setup import join_ranks
from finetune.training.stages import BEST, fingerprint_answers, fingerprint_identity, load_data, make_target_stage
from finetune.training.train import train_ranker
from pretrain.modeling.pair_model import holds_no_weights
from pretrain.release.folder import fingerprint_model

from .questions import Questions, subsample_negatives

log = logging.getLogger(__name__)

PRETRAINED = "the pre-trained model, without labels"
BI_ENCODER = "the fine-tuned bi-encoder"
CROSS_ENCODER = "the fine-tuned cross-encoder"
PRETRAINED_CROSS_ENCODER = "the pre-trained and fine-tuned cross-encoder"
MIN_UPDATES, UPDATES_SHARE = 40, 0.25  # a cross-encoder's updates: at least, and as a share of the pre-training's
VALIDATIONS, MIN_BETWEEN = 5, 20  # maximum of validations in a fine-tuning, minimum of updates between two
BI_ENCODER_DIVISOR = 2  # a bi-encoder makes fewer updates, which are of 32 questions instead of 32 pairs
VALIDATED_PAIRS = 500  # dev candidates that validate a cross-encoder; a bi-encoder, which is faster, takes all
LOGGED = 4  # log lines of a fine-tuning
MAX_LENGTH = 128  # tokens of a cross-encoder's question with a candidate, and of a text in fine-tuning
SEED = 1


@dataclass(frozen=True)
class Ranker:
    """A ranker, and its scores ``[N]`` of the candidates that rankers are compared on.

    model: a folder or hub name, BM25, or "" for the fusion, which has ``parts`` and ``fitted`` instead
    """

    name: str
    model: str
    scores: np.ndarray
    parts: tuple["Ranker", ...] = ()
    fitted: Fitted | None = None

    def measure(self, data: AnswerSet) -> np.ndarray:
        """Returns the average precision of each of these questions, ``[Q]``."""
        return compute_question_metrics(data, self.scores, (MAP,))[MAP]


@dataclass(frozen=True)
class ScoreCache:
    """Scores candidates by any ranker; the scores of models (not of BM25) are cached in ``folder``."""

    words: WordCounts
    folder: Path

    def rank(self, name: str, model: str, data: AnswerSet) -> Ranker:
        return Ranker(name, model, self.score(model, data))

    def score(self, model: str, data: AnswerSet) -> np.ndarray:
        if model == BM25:
            return score_bm25_by(self.words, data)
        key = f"{fingerprint_model(model)} {fingerprint_answers(data)}"
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp.npy")
            np.save(partial, score_answers(model, data))
            partial.replace(path)
        return np.load(path)

    def score_ranker(self, ranker: Ranker, data: AnswerSet) -> np.ndarray:
        """Returns a ranker's scores of other questions."""
        if ranker.fitted is None:
            return self.score(ranker.model, data)
        return ranker.fitted.score({part.name: self.score(part.model, data) for part in ranker.parts})


def name_model(model: str) -> str:
    return shorten_name(name_installed(model))


def name_base(model: str) -> str:
    """Returns the name of the base model among the rankers."""
    return f"{name_model(model)} as it is"


def list_untrained(model: str, data: AnswerSet, cache: ScoreCache) -> Iterator[Ranker]:
    """Yields BM25, and the base model if it can rank."""
    yield cache.rank(BM25, BM25, data)
    try:
        if holds_no_weights(model):
            raise KinspanError(f"{model} holds no weights")
        yield cache.rank(name_base(model), model, data)
    except KinspanError as error:
        log.info("%s ranks nothing as it is: %s", name_model(model), error)


def plan_fine_tuning(updates: int) -> tuple[int, int]:
    """Returns the number of a cross-encoder's updates, given the pre-training's, and of those between validations."""
    max_updates = max(MIN_UPDATES, int(UPDATES_SHARE * updates))
    return max_updates, max(MIN_BETWEEN, max_updates // VALIDATIONS)


def train_rankers(
    model: str, pretrained: str, questions: Questions, updates: int, folder: Path, cache: ScoreCache
) -> Iterator[Ranker]:
    """Fine-tunes a bi-encoder and two cross-encoders, and yields each.

    updates: the pre-training's number of updates
    folder:  for the runs, one sub-folder for each base model, labels and number of updates
    """
    has_negatives = bool((questions.train.labels == 0).any())
    negatives = {"negatives_ratio": 3.0} if has_negatives else {"negatives_per_question": 4, "negatives_from": "corpus"}
    plans: list[tuple[str, str, int, JsonObject]] = [
        (BI_ENCODER, model, BI_ENCODER_DIVISOR, {"loss": CONTRASTIVE, "own_negatives": 1}),
        (CROSS_ENCODER, model, 1, negatives),
        (PRETRAINED_CROSS_ENCODER, pretrained, 1, negatives),
    ]
    labels = [fingerprint_answers(split) for split in (questions.train, questions.dev)]
    for number, (name, base, divisor, settings) in enumerate(plans, 1):
        max_updates, between = (count // divisor for count in plan_fine_tuning(updates))
        log.info("fine-tuning %s of %s: %s, at most %s updates", number, len(plans), name, max_updates)
        key = fingerprint_identity({"made of": [fingerprint_model(base), labels, max_updates]})
        config = FinetuneConfig(
            data=questions.spec,
            model=base,
            learning_rate=5e-5,
            micro_batch_size=32,
            epochs=1000,
            max_steps=max_updates,
            eval_steps=between,
            patience=2,
            log_steps=max(1, max_updates // LOGGED),
            max_length=find_trained_length(pretrained) or MAX_LENGTH,  # less if the model has fewer positions
            output_dir=str(folder / f"{number}-{key}"),
            **settings,
        )
        yield cache.rank(name, _train(config), questions.dev)


def _train(config: FinetuneConfig) -> str:
    """Fine-tunes, and returns the folder of the ranker that was best on the dev questions."""
    check(config)
    data = load_data(config, with_test=False)
    if config.loss != CONTRASTIVE:
        data = replace(data, dev=subsample_negatives(data.dev, VALIDATED_PAIRS))
    stage = make_target_stage(config, data, SEED, str(config.model), "fine-tuning")
    folder = Path(config.output_dir) / f"seed-{SEED}"
    train_ranker(stage, SEED, folder, join_ranks(config))
    return str(folder / BEST)


def fuse_rankers(rankers: list[Ranker], dev: AnswerSet) -> Ranker:
    """Returns the learned fusion of BM25, the base model, the bi-encoder and the best cross-encoder."""
    names = (PRETRAINED, CROSS_ENCODER, PRETRAINED_CROSS_ENCODER)
    cross_encoders = [ranker for ranker in rankers if ranker.name in names]
    best = max(cross_encoders, key=lambda ranker: ranker.measure(dev).mean())
    parts = tuple(ranker for ranker in rankers if ranker not in cross_encoders or ranker is best)
    fitted = fit_fusion(dev, {ranker.name: ranker.scores for ranker in parts})
    return Ranker(FUSION, "", fitted.out_of_fold, parts, fitted)
