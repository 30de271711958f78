"""Loads what a run of fine-tuning needs before it starts: its model, its texts as token ids, and its plan."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from finetune.data.answers import AnswerSet
from finetune.ranking.encode import encode_pairs, find_cut, log_cut
from finetune.ranking.ranker import Ranker, check_plain, load_own_tokenizer, load_ranker, save_ranker
from finetune.ranking.score import score_pairs
from finetune.ranking.siamese import (
    SiameseRanker,
    encode_texts,
    find_cut_pairs,
    load_siamese_ranker,
    save_siamese_ranker,
    score_texts,
)
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.modeling.scorer import check_fits

from . import losses
from .config import CONTRASTIVE, LISTED, TEMPERATURE, FinetuneConfig, get_max_length
from .contrast import SiameseTrainer, update_bi_encoder
from .engine import Ranks
from .groups import log_unlisted
from .plan import FitPlan, TrainingStage, largest_group, plan_stage
from .update import Loss, Trainer, update_ranker

# (engine, device, what=..., mark=...) -> the score of every row [N]
Scoring = Callable[..., np.ndarray]


@dataclass(frozen=True, kw_only=True)
class RankerSetup:
    """The parts of a run; functions where a cross-encoder and a bi-encoder differ.

    update:   makes an update of the engine: (engine, groups, batch, step, mark)
    measure:  returns the tokens of rows of the training set
    measured: for each dev set, and "test" if it is measured at each validation, the answers and their scoring
    save:     writes weights to a folder, which others load as a ranker
    """

    ranker: Ranker | SiameseRanker
    plan: FitPlan
    layout: Layout
    update: Callable[..., Outcome]
    measure: Callable[[np.ndarray], np.ndarray]
    measured: dict[str, tuple[AnswerSet, Scoring]]
    save: Callable[[dict[str, torch.Tensor], Path], None]


def load_setup(config: FinetuneConfig, stage: TrainingStage, seed: int, ranks: Ranks) -> RankerSetup:
    """Loads and checks everything that can be checked before training starts. Raises KinspanError."""
    plan = plan_stage(config, stage, seed)
    micro = max(1, min(plan.groups, config.micro_batch_size // largest_group(config)))
    layout = Layout(plan.groups, micro, ranks.world)
    load = _load_bi_encoder if config.loss == CONTRASTIVE else _load_cross_encoder
    return load(config, stage, seed, plan, layout, ranks.rank)


def _load_cross_encoder(
    config: FinetuneConfig, stage: TrainingStage, seed: int, plan: FitPlan, layout: Layout, rank: int
) -> RankerSetup:
    fresh = config.fresh_head and stage.model == config.model  # what a transfer has learned is kept
    ranker = load_ranker(stage.model, seed, _share_of_positives(config, stage), fresh)
    check_plain(ranker, stage.model)
    tokenizer = load_own_tokenizer(stage.model)
    check_fits(stage.model, ranker.classifier, tokenizer, get_max_length(config))
    pairs = encode_pairs(stage.train, tokenizer, get_max_length(config))
    log_cut(stage.train, find_cut(pairs), get_max_length(config))
    if config.loss in LISTED:
        log_unlisted(stage.train)

    def prepare(data: AnswerSet) -> Scoring:
        encoded = encode_pairs(data, tokenizer, get_max_length(config))
        log_cut(data, find_cut(encoded), get_max_length(config))
        return lambda model, device, **options: score_pairs(model, encoded, device, **options)

    trainer = Trainer(
        pairs=pairs, labels=stage.train.labels, loss=choose_loss(config), layout=layout, rank=rank, seed=seed
    )
    return RankerSetup(
        ranker=ranker,
        plan=plan,
        layout=layout,
        update=lambda engine, *rest: update_ranker(engine, trainer, *rest),
        measure=pairs.measure,
        measured={name: (data, prepare(data)) for name, data in list_measured(stage).items()},
        save=partial(save_ranker, ranker.classifier.config, tokenizer, get_max_length(config)),
    )


def _load_bi_encoder(
    config: FinetuneConfig, stage: TrainingStage, seed: int, plan: FitPlan, layout: Layout, rank: int
) -> RankerSetup:
    ranker = load_siamese_ranker(stage.model, seed)
    tokenizer = load_own_tokenizer(stage.model)
    check_fits(stage.model, ranker.encoder, tokenizer, get_max_length(config))
    texts = encode_texts(stage.train, tokenizer, get_max_length(config))
    log_cut(stage.train, find_cut_pairs(texts, stage.train), get_max_length(config))
    width = int(ranker.config.hidden_size)

    def prepare(data: AnswerSet) -> Scoring:
        encoded = encode_texts(data, tokenizer, get_max_length(config))
        log_cut(data, find_cut_pairs(encoded, data), get_max_length(config))
        return lambda model, device, **options: score_texts(model, data, encoded, width, device, **options)

    trainer = SiameseTrainer(
        data=stage.train,
        texts=texts,
        temperature=config.temperature or TEMPERATURE,
        symmetric=config.symmetric,
        layout=layout,
        rank=rank,
        seed=seed,
    )
    return RankerSetup(
        ranker=ranker,
        plan=plan,
        layout=layout,
        update=lambda engine, *rest: update_bi_encoder(engine, trainer, *rest),
        measure=trainer.measure,
        measured={name: (data, prepare(data)) for name, data in list_measured(stage).items()},
        save=partial(save_siamese_ranker, ranker.config, tokenizer, get_max_length(config)),
    )


def list_measured(stage: TrainingStage) -> dict[str, AnswerSet]:
    """Returns the data that validations measure, by name."""
    return {**stage.devs, **({} if stage.test is None else {"test": stage.test})}


def choose_loss(config: FinetuneConfig) -> Loss:
    """Returns the function that ``--loss`` names, with its settings."""
    if config.loss == "pointwise":
        return partial(losses.pointwise, positive_weight=config.positive_weight)
    return {"pairwise": losses.pairwise, "listwise": losses.listwise}[config.loss]


def _share_of_positives(config: FinetuneConfig, stage: TrainingStage) -> float:
    """Returns what a fresh head first predicts."""
    share = float(stage.train.labels.mean())
    if stage.negatives_per_question is not None:
        right = int(stage.train.labels.sum())
        share = right / max(1, right + stage.negatives_per_question * stage.train.num_questions)
    return min(max(share, 0.01), 0.99)
