"""Fine-tunes rankers in folds, so that every labelled question is scored by a ranker that has not seen it."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.core.files import JsonObject
from finetune.data.answers import AnswerSet
from finetune.data.folds import iterate_folds
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.training.config import FinetuneConfig, check
from finetune.training.setup import join_ranks
from finetune.training.stages import (
    BEST,
    DEV,
    LAST,
    SCORES,
    TrainingStage,
    fingerprint_answers,
    fingerprint_identity,
    name_scores,
    plan_stage,
)
from finetune.training.train import train_ranker
from pretrain.release.folder import fingerprint_model

from .questions import Questions

log = logging.getLogger(__name__)

SEED = 1
VALIDATIONS = 2  # of a fine-tuning: one of these numbers of updates is chosen, or none
EPOCHS = 12  # at most
MIN_FOLDS = 2


@dataclass(frozen=True)
class Training:
    """How a ranker is fine-tuned.

    model:       the folder or hub name of the model that it starts from
    settings:    of FinetuneConfig
    max_updates: a multiple of VALIDATIONS
    """

    name: str
    model: str
    settings: JsonObject
    max_updates: int
    num_folds: int


def make_stage(training: Training, questions: Questions, train: AnswerSet, dev: AnswerSet | None) -> TrainingStage:
    """Returns a fold's fine-tuning, or without ``dev`` that on all questions, which stays to the end."""
    config = FinetuneConfig(
        data=questions.spec,
        model=training.model,
        learning_rate=5e-5,
        lr_schedule="constant",  # so that a shorter training is the beginning of a longer one
        warmup_steps=max(1, training.max_updates // 10),
        micro_batch_size=32,
        epochs=10_000,
        eval_steps=training.max_updates // VALIDATIONS,
        patience=VALIDATIONS,
        log_steps=training.max_updates,
        **{"max_steps": training.max_updates, **training.settings},
    )
    check(config)
    facts = {"train": fingerprint_answers(train), "dev": dev and fingerprint_answers(dev)}
    return TrainingStage(
        what=f"training {training.name}",
        config=config,
        model=training.model,
        train=train,
        devs={DEV: dev} if dev else {},
        keeps=SCORES if dev else LAST,
        identity={"settings": training.settings, "model": fingerprint_model(training.model), **facts},
    )


def count_epoch(training: Training, questions: Questions) -> int:
    """Returns the number of updates of an epoch over all questions. Raises KinspanError for an impossible training."""
    return plan_stage(make_stage(training, questions, questions.train.keep(questions.clear), None), SEED)[0]


def train_in_folds(
    training: Training, questions: Questions, folder: Path, start: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """Returns the out-of-fold scores ``[N]`` of the scored questions, and the number of updates to train on all with.

    start: scores ``[N]`` of the model before training, if it ranks

    A fold is scored after the number of updates with the highest MAP on the other folds: no question chooses its own
    scorer.
    """
    scored, fold_of = questions.scored, questions.assign_folds(training.num_folds)
    steps = np.linspace(0, training.max_updates, VALIDATIONS + 1, dtype=int)
    scores = np.zeros((len(steps), scored.num_pairs))
    if start is not None:
        scores[0] = start
    fold_of_row = fold_of[questions.asked][scored.question_of]
    for fold, (trained, held_out) in enumerate(iterate_folds(fold_of)):
        if not (held_out & questions.compared).any():
            continue
        stage = make_stage(training, questions, questions.select(trained), scored.take(held_out[questions.asked]))
        run = folder / f"fold-{fold}-{fingerprint_identity({**stage.identity, 'updates': training.max_updates})}"
        stage = replace(stage, what=f"fold {fold + 1} of {training.num_folds}")
        train_ranker(stage, SEED, run, join_ranks(stage.config))
        scores[1:, fold_of_row == fold] = [np.load(run / name_scores(step)) for step in steps[1:]]
    first = 0 if start is not None else 1
    ranked = np.stack([questions.sink_missed(row) for row in scores[first:]])
    return choose_updates(scored, ranked, fold_of[questions.asked], steps[first:], questions.judged)


def choose_updates(
    data: AnswerSet, scores: np.ndarray, fold_of: np.ndarray, steps: np.ndarray, judged: np.ndarray
) -> tuple[np.ndarray, int]:
    """Returns the scores ``[N]`` of each fold at the validation that is best on the others, and the steps best on all.

    scores:  ``[V, N]`` at each of V validations, out of fold
    fold_of: ``[Q]`` fold of each question
    judged:  ``[Q]`` bool, the questions that choose
    """
    precision = np.stack([compute_question_metrics(data, row, (MAP,))[MAP] for row in scores])
    out = np.empty(data.num_pairs)
    for others, held_out in iterate_folds(fold_of):
        rows = held_out[data.question_of]
        out[rows] = scores[precision[:, others & judged].mean(axis=1).argmax()][rows]
    return out, int(steps[precision[:, judged].mean(axis=1).argmax()])


def train_on_all(training: Training, updates: int, questions: Questions, folder: Path) -> str:
    """Fine-tunes on all questions, and returns the ranker's folder: without updates, that of the start."""
    if not updates:
        return training.model
    stage = make_stage(training, questions, questions.train.keep(questions.clear), None)
    stage.config.max_steps = updates
    run = folder / f"all-{fingerprint_identity({**stage.identity, 'updates': updates})}"
    log.info("%s is trained on all %d questions, %d updates", training.name, questions.train.num_questions, updates)
    train_ranker(stage, SEED, run, join_ranks(stage.config))
    return str(run / BEST)
