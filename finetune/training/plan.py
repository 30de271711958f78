"""The stage of a run of fine-tuning, and its length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune.data.answers import AnswerSet
from pretrain.engine.schedule import Schedule, make_schedule

from .config import CONTRASTIVE, CORPUS, FinetuneConfig
from .groups import Groups, draw_examples, draw_lists, draw_negatives, draw_pairs


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """The data and settings of a run that differ between the stages of an experiment.

    what:             "fine-tuning", "transfer" or "adaptation", for the screen
    model:            the folder or hub name of the model that it starts from
    train:            filtered
    devs:             filtered, by their names in the log: "dev", or for a transfer "dev-NAME" of each target. A best
                      ranker is kept for each, see ``name_best``
    test:             filtered; measured at each validation, if given
    max_steps, eval_steps, negatives_...: as in FinetuneConfig
    identity:         what makes it this run: an output folder that holds another one is refused
    batch_size:       pairs in one update, where it is not that of the settings
    """

    what: str
    model: str
    train: AnswerSet
    devs: Mapping[str, AnswerSet]
    test: AnswerSet | None = None
    learning_rate: float
    epochs: int
    max_steps: int | None = None
    eval_steps: int | None = None
    negatives_ratio: float | None = None
    negatives_per_question: int | None = None
    negatives_from: str | None = None
    identity: dict[str, Any]
    batch_size: int | None = None


DEV, BEST = "dev", "best"


def name_best(dev: str) -> str:
    """Names the folder of the ranker that is best on a dev set: ``best``, or ``best-NAME`` for ``dev-NAME``."""
    return BEST + dev.removeprefix(DEV)


@dataclass(frozen=True)
class FitPlan:
    """The length of a stage.

    groups:             in one update, over all ranks (see losses.py)
    epoch_steps, total: updates in an epoch, and in all
    schedule:           of the learning rate
    """

    groups: int
    epoch_steps: int
    total: int
    schedule: Schedule


def plan_stage(config: FinetuneConfig, stage: TrainingStage, seed: int) -> FitPlan:
    """Returns the length of a stage. Raises KinspanError where its warm-up is longer, or it has no groups."""
    groups = max(1, (stage.batch_size or config.batch_size) // largest_group(config))
    epoch_steps = math.ceil(len(draw_groups(config, stage, seed, 0)) / groups)
    total = min(stage.epochs * epoch_steps, stage.max_steps or stage.epochs * epoch_steps)
    warmup = int(config.warmup_share * total) if config.warmup_steps is None else config.warmup_steps
    return FitPlan(groups, epoch_steps, total, make_schedule(config, stage.learning_rate, total, warmup, stage.what))


def largest_group(config: FinetuneConfig) -> int:
    """Returns the most pairs of a group, as batch sizes count them: an example of a bi-encoder counts as one."""
    return 1 if config.loss in ("pointwise", CONTRASTIVE) else config.list_size


def draw_groups(config: FinetuneConfig, stage: TrainingStage, seed: int, epoch: int) -> Groups:
    """Returns the groups of an epoch, in their order: a function of (seed, epoch)."""
    if config.loss == CONTRASTIVE:
        return draw_examples(stage.train, seed, epoch, config.own_negatives or 0)
    if stage.negatives_per_question is not None:
        from_corpus = stage.negatives_from == CORPUS
        return draw_negatives(stage.train, seed, epoch, stage.negatives_per_question, from_corpus)
    if config.loss == "pointwise":
        return draw_pairs(stage.train, seed, epoch, stage.negatives_ratio)
    return draw_lists(stage.train, seed, epoch, config.list_size)
