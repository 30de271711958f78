"""Loads what a run of fine-tuning needs before it starts: its ranks, model, texts as token ids, and schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from data_pipeline.core.files import JsonObject
from finetune.data.answers import AnswerSet
from finetune.ranking.encode import EncodedPairs, encode_pairs, log_cut
from finetune.ranking.ranker import Ranker, check_no_bottlenecks, load_own_tokenizer, load_ranker, save_ranker
from finetune.ranking.score import score_pairs
from finetune.ranking.siamese import (
    EncodedAnswers,
    SiameseRanker,
    encode_answers,
    load_siamese_ranker,
    save_siamese_ranker,
    score_texts,
)
from pretrain.engine.deepspeed_compat import Engine
from pretrain.engine.deepspeed_config import read_deepspeed_config
from pretrain.engine.engine import start_distributed
from pretrain.engine.layout import Layout
from pretrain.engine.schedule import Schedule
from pretrain.engine.world import read_launcher_variables
from pretrain.modeling.limits import check_fits

from .config import CONTRASTIVE, DEFAULT_DEEPSPEED_CONFIG, TEMPERATURE, FinetuneConfig
from .stages import TrainingStage, plan_stage
from .trainers import SiameseTrainer, Trainer

# (engine, its device, label for the progress bar) -> the score of every row [N]
Scoring = Callable[[Engine, torch.device, str], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank, the number of ranks, and DeepSpeed's settings."""

    rank: int
    world: int
    deepspeed: JsonObject


def join_ranks(config: FinetuneConfig) -> Ranks:
    """Joins the other ranks. Raises KinspanError for an invalid ``--deepspeed_config``."""
    rank, _, world = read_launcher_variables()
    settings = read_deepspeed_config(config.deepspeed_config or DEFAULT_DEEPSPEED_CONFIG)
    start_distributed()
    return Ranks(rank=rank, world=world, deepspeed=settings)


@dataclass(frozen=True)
class RankerSetup:
    """The parts of a run.

    measured: for each split that validations measure: its answers, and the function that scores them
    save:     writes weights into a folder, with the files needed to load them as a model
    """

    ranker: Ranker | SiameseRanker
    epoch_steps: int
    schedule: Schedule
    layout: Layout
    trainer: Trainer | SiameseTrainer
    measured: dict[str, tuple[AnswerSet, Scoring]]
    save: Callable[[dict[str, torch.Tensor], Path], None]


def load_setup(stage: TrainingStage, seed: int, ranks: Ranks) -> RankerSetup:
    """Loads and checks everything that can be checked before training starts. Raises KinspanError."""
    config, (epoch_steps, schedule) = stage.config, plan_stage(stage, seed)
    layout = Layout(config.batch_size, min(config.batch_size, config.micro_batch_size), ranks.world)
    load = _load_bi_encoder if config.loss == CONTRASTIVE else _load_cross_encoder
    ranker, trainer, make_scoring, save = load(stage, seed, layout, ranks.rank)
    splits = {**stage.devs, **({} if stage.test is None else {"test": stage.test})}
    measured = {name: (data, make_scoring(data)) for name, data in splits.items()}
    return RankerSetup(ranker, epoch_steps, schedule, layout, trainer, measured, save)


def _load_cross_encoder(
    stage: TrainingStage, seed: int, layout: Layout, rank: int
) -> tuple[Ranker, Trainer, Callable[[AnswerSet], Scoring], Callable[..., None]]:
    config = stage.config
    fresh = config.fresh_head and stage.model == config.model  # a transferred model keeps its head
    ranker = load_ranker(stage.model, seed, compute_positive_share(stage), fresh)
    check_no_bottlenecks(ranker, stage.model)
    tokenizer, length = load_own_tokenizer(stage.model), stage.max_length
    check_fits(stage.model, ranker.classifier, tokenizer, length)

    def encode(data: AnswerSet) -> EncodedPairs:
        pairs = encode_pairs(data, tokenizer, length)
        log_cut(data, pairs.find_cut(), length)
        return pairs

    def make_scoring(data: AnswerSet) -> Scoring:
        pairs = encode(data)
        return lambda engine, device, what: score_pairs(engine, pairs, device, what)

    trainer = Trainer(pairs=encode(stage.train), labels=stage.train.labels, layout=layout, rank=rank, seed=seed)
    return ranker, trainer, make_scoring, partial(save_ranker, ranker.classifier.config, tokenizer, length)


def _load_bi_encoder(
    stage: TrainingStage, seed: int, layout: Layout, rank: int
) -> tuple[SiameseRanker, SiameseTrainer, Callable[[AnswerSet], Scoring], Callable[..., None]]:
    config, ranker = stage.config, load_siamese_ranker(stage.model, seed)
    tokenizer, length = load_own_tokenizer(stage.model), stage.max_length
    check_fits(stage.model, ranker.encoder, tokenizer, length)
    width = int(ranker.config.hidden_size)

    def encode(data: AnswerSet) -> EncodedAnswers:
        texts = encode_answers(data, tokenizer, length)
        log_cut(data, texts.find_cut(data.question_of), length)
        return texts

    def make_scoring(data: AnswerSet) -> Scoring:
        texts = encode(data)
        return lambda engine, device, what: score_texts(engine, data, texts, width, device, what)

    trainer = SiameseTrainer(
        data=stage.train,
        texts=encode(stage.train),
        temperature=config.temperature or TEMPERATURE,
        layout=layout,
        rank=rank,
        seed=seed,
    )
    return ranker, trainer, make_scoring, partial(save_siamese_ranker, ranker.config, tokenizer, length)


def compute_positive_share(stage: TrainingStage) -> float:
    """Returns the share of right answers among an epoch's pairs, the first prediction of a fresh head."""
    right, share = int(stage.train.labels.sum()), float(stage.train.labels.mean())
    if stage.config.negatives_per_question is not None:
        share = right / max(1, right + stage.config.negatives_per_question * stage.train.num_questions)
    if stage.config.negatives_ratio is not None:
        share = max(share, 1 / (1 + stage.config.negatives_ratio))
    return min(max(share, 0.01), 0.99)
