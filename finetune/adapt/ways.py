"""The ways of ranking that an adaptation compares: what each is, its training, and its scores."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, WordCounts, score_bm25_by
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.fuse import NAME as FUSION
from finetune.fuse import Fitted, fit_fusion
from finetune.ranking.score import score_answers
from finetune.training.config import CONTRASTIVE, FinetuneConfig
from finetune.training.experiment import run_experiment
from finetune.training.fingerprints import fingerprint_answers, fingerprint_identity, fingerprint_model
from finetune.training.plan import BEST
from pretrain.modeling.default_model import name_installed
from pretrain.modeling.pair_model import holds_no_weights

from .questions import Questions

PRETRAINED = "the pre-trained model, without labels"
BI_ENCODER = "the fine-tuned bi-encoder"
CROSS_ENCODER = "the fine-tuned cross-encoder"
BOTH = "the pre-trained and fine-tuned cross-encoder"
FEWEST_UPDATES, SHARE = 60, 0.25  # of a fine-tuning: least, and as a share of the updates of the pre-training
VALIDATIONS, LOGGED = 5, 20  # of a fine-tuning, and how often it tells how far it is
MAX_LENGTH = 128  # tokens of a question with a candidate, in fine-tuning
SEED = 1


@dataclass(frozen=True)
class Way:
    """A way of ranking.

    name:   for people
    model:  what ``score_answers`` takes; BM25; or "" of the fusion
    scores: ``[N]`` of the candidates of the questions that ways are compared on
    parts:  of the fusion, the ways that it adds up
    fitted: the fusion
    """

    name: str
    model: str
    scores: np.ndarray
    parts: tuple["Way", ...] = ()
    fitted: Fitted | None = None

    def measure(self, data: AnswerSet) -> np.ndarray:
        """Average precision of each of these questions, ``[Q]``."""
        return compute_question_metrics(data, self.scores, (MAP,))[MAP]


@dataclass(frozen=True)
class Scorer:
    """Scores candidates by any way; those of a model are kept in ``folder``, so that none is computed twice."""

    words: WordCounts
    folder: Path

    def score(self, model: str, data: AnswerSet) -> np.ndarray:
        if model == BM25:
            return score_bm25_by(self.words, data)
        made_of = f"{fingerprint_model(model)} {fingerprint_answers(data)}"
        path = self.folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npy"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp.npy")
            np.save(partial, score_answers(model, data, say=print))
            partial.replace(path)
        return np.load(path)

    def score_way(self, way: Way, data: AnswerSet) -> np.ndarray:
        """The scores of a way on other questions."""
        if way.fitted is None:
            return self.score(way.model, data)
        return way.fitted.score({part.name: self.score(part.model, data) for part in way.parts})


def list_untrained(
    start: str, pretrained: str, data: AnswerSet, scorer: Scorer, say: Callable[[str], None]
) -> list[Way]:
    """BM25, the start as it is where it ranks, and the pre-trained model by the head that its pre-training left."""
    ways = [Way(BM25, BM25, scorer.score(BM25, data))]
    try:
        if holds_no_weights(start):
            raise KinspanError("it has no weights")
        ways.append(Way(name_start(start), start, scorer.score(start, data)))
    except KinspanError as error:
        say(f"  {name_model(start)} as it is ranks nothing: {error}")
    return [*ways, Way(PRETRAINED, pretrained, scorer.score(pretrained, data))]


def name_model(model: str) -> str:
    """What people call a model."""
    return shorten_name(name_installed(model))


def name_start(start: str) -> str:
    """What the start is called among the ways."""
    return f"{name_model(start)} as it is"


def count_updates(updates: int) -> int:
    """The most updates of a fine-tuning after a pre-training of so many."""
    return max(FEWEST_UPDATES, int(SHARE * updates))


def train_ways(
    start: str,
    pretrained: str,
    questions: Questions,
    updates: int,
    folder: Path,
    scorer: Scorer,
    begin: Callable[[str], None],
) -> list[Way]:
    """Fine-tunes a bi-encoder and two cross-encoders.

    updates: of the pre-training
    folder:  for the runs, each in a folder of its own for every model, set of labels and length that there has been
    begin:   is told of each training before it
    """
    has_wrong = bool((questions.train.labels == 0).any())
    negatives = {"negatives_ratio": 3.0} if has_wrong else {"negatives_per_question": 4, "negatives_from": "corpus"}
    plans: list[tuple[str, str, dict[str, Any]]] = [
        (BI_ENCODER, start, {"loss": CONTRASTIVE, "own_negatives": 2}),
        (CROSS_ENCODER, start, negatives),
        (BOTH, pretrained, negatives),
    ]
    most = count_updates(updates)
    labels = [fingerprint_answers(split) for split in (questions.train, questions.dev)]
    ways = []
    for number, (name, model, own) in enumerate(plans, 1):
        begin(f"training {number} of {len(plans)}: {name}; at most {most:,} updates")
        model_print = fingerprint_model(model)
        config = FinetuneConfig(
            data=questions.spec,
            model=model,
            seed=[SEED],
            learning_rate=5e-5,
            micro_batch_size=32,
            epochs=1000,
            max_steps=most,
            eval_steps=max(1, most // VALIDATIONS),
            patience=2,
            log_steps=max(1, most // LOGGED),
            max_length=MAX_LENGTH,
            output_dir=str(folder / f"{number}-{fingerprint_identity({'made of': [model_print, labels, most]})}"),
            **own,
        )
        run_experiment(config, with_page=False, baselines=False, with_test=False)
        best = str(Path(config.output_dir) / f"seed-{SEED}" / BEST)
        ways.append(Way(name, best, scorer.score(best, questions.dev)))
    return ways


def fuse_ways(ways: list[Way], dev: AnswerSet) -> Way:
    """The learned fusion of BM25, the start, the bi-encoder and the best cross-encoder."""
    cross_encoders = [way for way in ways if way.name in (PRETRAINED, CROSS_ENCODER, BOTH)]
    best = max(cross_encoders, key=lambda way: way.measure(dev).mean())
    parts = tuple(way for way in ways if way not in cross_encoders or way is best)
    fitted = fit_fusion(dev, {way.name: way.scores for way in parts})
    return Way(FUSION, "", fitted.out_of_fold, parts, fitted)
