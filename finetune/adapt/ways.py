"""The ways of ranking that an adaptation compares: what each is, its training, and its scores."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, WordCounts, score_bm25_by
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.fuse import NAME as FUSION
from finetune.fuse import Fitted, fit_fusion
from finetune.ranking.ranker import find_trained_length
from finetune.ranking.score import check_finite, load_scoring
from finetune.training.config import CONTRASTIVE, FinetuneConfig, check
from finetune.training.engine import join_ranks
from finetune.training.fingerprints import fingerprint_answers, fingerprint_identity, fingerprint_model
from finetune.training.plan import BEST
from finetune.training.stages import load_data, make_target_stage
from finetune.training.train import train_ranker
from pretrain.modeling.default_model import name_installed
from pretrain.modeling.pair_model import holds_no_weights

from .questions import Questions, thin

PRETRAINED = "the pre-trained model, without labels"
BI_ENCODER = "the fine-tuned bi-encoder"
CROSS_ENCODER = "the fine-tuned cross-encoder"
BOTH = "the pre-trained and fine-tuned cross-encoder"
FEWEST_UPDATES, SHARE = 40, 0.25  # of a cross-encoder: least, and as a share of the updates of the pre-training
VALIDATIONS, FEWEST_BETWEEN = 5, 20  # of a fine-tuning at most, and the updates from one to the next at least
LARGER = 2  # a bi-encoder's updates are of 32 questions, not of 32 pairs: it makes fewer of them by this factor
VALIDATED = 500  # dev candidates by which a cross-encoder is validated; a bi-encoder reads equal texts once, and all
LOGGED = 20  # how often a fine-tuning tells how far it is
MAX_LENGTH = 128  # tokens of a question with a candidate that a cross-encoder reads, and of a text in fine-tuning
SEED = 1


@dataclass(frozen=True)
class Way:
    """A way of ranking.

    name:   for people
    model:  what ``load_scoring`` takes; BM25; or "" of the fusion
    scores: ``[N]`` of the candidates of the questions that ways are compared on
    cut:    how many of these are cut
    length: the most tokens that the model reads; 0 of BM25 and of the fusion
    parts:  of the fusion, the ways that it adds up
    fitted: the fusion
    """

    name: str
    model: str
    scores: np.ndarray
    cut: int = 0
    length: int = 0
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

    def rank(self, name: str, model: str, data: AnswerSet) -> Way:
        """The way of that name, with its scores of these candidates."""
        if model == BM25:
            return Way(name, model, score_bm25_by(self.words, data))
        made_of = f"{fingerprint_model(model)} {fingerprint_answers(data)}"
        path = self.folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npz"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp.npz")
            np.savez(partial, **_score_and_count(model, data))
            partial.replace(path)
        kept = np.load(path)
        return Way(name, model, kept["scores"], int(kept["cut"]), int(kept["length"]))

    def score(self, model: str, data: AnswerSet) -> np.ndarray:
        return self.rank("", model, data).scores

    def score_way(self, way: Way, data: AnswerSet) -> np.ndarray:
        """The scores of a way on other questions."""
        if way.fitted is None:
            return self.score(way.model, data)
        return way.fitted.score({part.name: self.score(part.model, data) for part in way.parts})


def _score_and_count(model: str, data: AnswerSet) -> dict[str, Any]:
    """``scores`` of the candidates, how many of these are ``cut``, and at which ``length``."""
    seen: dict[str, int] = {}
    scoring, length = load_scoring(model, say=print, see=lambda _, cut, __: seen.update(cut=int(cut.sum())))
    scores = scoring(data)
    check_finite(scores, model, data)
    return {"scores": scores, "length": length, **seen}


def list_untrained(start: str, data: AnswerSet, scorer: Scorer, say: Callable[[str], None]) -> Iterator[Way]:
    """BM25, and the start as it is where it ranks."""
    yield scorer.rank(BM25, BM25, data)
    try:
        if holds_no_weights(start):
            raise KinspanError("it has no weights")
        yield scorer.rank(name_start(start), start, data)
    except KinspanError as error:
        say(f"  {name_model(start)} as it is ranks nothing: {error}")


def find_start(ways: Sequence[Way], start: str) -> Way:
    """The start as it is among the ways, which the others have to beat; BM25 where it ranks nothing."""
    return next((way for way in ways if way.name == name_start(start)), ways[0])


def describe_way(way: Way, start: Way, data: AnswerSet) -> str:
    """How well a way ranks the dev questions, beside the start."""
    own, base = (float(one.measure(data).mean()) for one in (way, start))
    line = f"dev MAP {own:.3f}  {way.name}"
    if way.name not in (BM25, start.name):
        line += f": {'above' if own > base else 'not above'} {start.name} ({base:.3f})"
    if way.length:
        line += f"; it reads {way.length} tokens, which cut {way.cut:,} of {data.num_pairs:,} candidates"
    return line


def name_model(model: str) -> str:
    """What people call a model."""
    return shorten_name(name_installed(model))


def name_start(start: str) -> str:
    """What the start is called among the ways."""
    return f"{name_model(start)} as it is"


def count_updates(updates: int) -> tuple[int, int]:
    """The most updates of a cross-encoder's fine-tuning after a pre-training of so many, and those from one validation
    to the next."""
    most = max(FEWEST_UPDATES, int(SHARE * updates))
    return most, max(FEWEST_BETWEEN, most // VALIDATIONS)


def train_ways(
    start: str,
    pretrained: str,
    questions: Questions,
    updates: int,
    folder: Path,
    scorer: Scorer,
    begin: Callable[[str], None],
) -> Iterator[Way]:
    """Fine-tunes a bi-encoder and two cross-encoders, and yields each.

    updates: of the pre-training
    folder:  for the runs, each in a folder of its own for every model, set of labels and length that there has been
    begin:   is told of each training before it
    """
    has_wrong = bool((questions.train.labels == 0).any())
    negatives = {"negatives_ratio": 3.0} if has_wrong else {"negatives_per_question": 4, "negatives_from": "corpus"}
    plans: list[tuple[str, str, int, dict[str, Any]]] = [
        (BI_ENCODER, start, LARGER, {"loss": CONTRASTIVE, "own_negatives": 1}),
        (CROSS_ENCODER, start, 1, negatives),
        (BOTH, pretrained, 1, negatives),
    ]
    labels = [fingerprint_answers(split) for split in (questions.train, questions.dev)]
    for number, (name, model, larger, own) in enumerate(plans, 1):
        most, between = (count // larger for count in count_updates(updates))
        begin(f"training {number} of {len(plans)}: {name}; at most {most:,} updates")
        model_print = fingerprint_model(model)
        config = FinetuneConfig(
            data=questions.spec,
            model=model,
            learning_rate=5e-5,
            micro_batch_size=32,
            epochs=1000,
            max_steps=most,
            eval_steps=between,
            patience=2,
            log_steps=max(1, most // LOGGED),
            max_length=find_trained_length(pretrained) or MAX_LENGTH,  # less where the model has fewer positions
            output_dir=str(folder / f"{number}-{fingerprint_identity({'made of': [model_print, labels, most]})}"),
            **own,
        )
        yield scorer.rank(name, _train(config), questions.dev)


def _train(config: FinetuneConfig) -> str:
    """Fine-tunes, and returns the folder of the ranker that was best on the dev questions."""
    check(config)
    data = load_data(config, with_test=False)
    for note in data.notes:
        print(note)
    if config.loss != CONTRASTIVE:
        data = replace(data, dev=thin(data.dev, VALIDATED))
    stage = make_target_stage(config, data, SEED, str(config.model), "fine-tuning")
    folder = Path(config.output_dir) / f"seed-{SEED}"
    train_ranker(config, stage, SEED, folder, join_ranks(config))
    return str(folder / BEST)


def fuse_ways(ways: list[Way], dev: AnswerSet) -> Way:
    """The learned fusion of BM25, the start, the bi-encoder and the best cross-encoder."""
    cross_encoders = [way for way in ways if way.name in (PRETRAINED, CROSS_ENCODER, BOTH)]
    best = max(cross_encoders, key=lambda way: way.measure(dev).mean())
    parts = tuple(way for way in ways if way not in cross_encoders or way is best)
    fitted = fit_fusion(dev, {way.name: way.scores for way in parts})
    return Way(FUSION, "", fitted.out_of_fold, parts=parts, fitted=fitted)
