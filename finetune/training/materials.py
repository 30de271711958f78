"""What a run of fine-tuning reads before it starts: its model, its texts as token ids, and its plan."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from finetune.data.answers import AnswerSet
from finetune.ranking.encode import EncodedPairs, encode_pairs
from finetune.ranking.ranker import Ranker, check_plain, check_takes, load_own_tokenizer, load_ranker
from pretrain.runtime.layout import Layout

from . import losses
from .config import FinetuneConfig
from .engine import Ranks
from .plan import Plan, Stage, largest_group, plan_stage
from .update import Loss, Trainer


@dataclass(frozen=True, kw_only=True)
class Materials:
    """measured: for each dev set, and "test" if it is measured at each validation, the answers and their token ids;
    notes: lines that say what of the model is new"""

    ranker: Ranker
    tokenizer: Any
    plan: Plan
    layout: Layout
    trainer: Trainer
    measured: dict[str, tuple[AnswerSet, EncodedPairs]]
    notes: list[str]


def load_materials(config: FinetuneConfig, stage: Stage, seed: int, ranks: Ranks) -> Materials:
    """Loads and checks everything that can be checked before training starts. Raises KinspanError."""
    fresh = config.fresh_head and stage.model == config.model  # what a transfer has learned is kept
    ranker, notes = load_ranker(stage.model, seed, _share_of_positives(config, stage), fresh)
    check_plain(ranker, stage.model)
    tokenizer = load_own_tokenizer(stage.model)
    check_takes(ranker, tokenizer, stage.model, config.max_length)
    encode: Callable[[AnswerSet], EncodedPairs] = partial(
        encode_pairs, tokenizer=tokenizer, max_length=config.max_length
    )
    pairs = encode(stage.train)
    measured = {name: (dev, encode(dev)) for name, dev in stage.devs.items()}
    if stage.test is not None:
        measured["test"] = (stage.test, encode(stage.test))
    plan = plan_stage(config, stage, seed)
    micro = max(1, min(plan.groups, config.micro_batch_size // largest_group(config)))
    layout = Layout(plan.groups, micro, ranks.world)
    trainer = Trainer(
        pairs=pairs, labels=stage.train.labels, loss=choose_loss(config), layout=layout, rank=ranks.rank, seed=seed
    )
    return Materials(
        ranker=ranker,
        tokenizer=tokenizer,
        plan=plan,
        layout=layout,
        trainer=trainer,
        measured=measured,
        notes=notes,
    )


def choose_loss(config: FinetuneConfig) -> Loss:
    """The function that ``--loss`` names, with its settings."""
    if config.loss == "pointwise":
        return partial(losses.pointwise, positive_weight=config.positive_weight)
    return {"pairwise": losses.pairwise, "listwise": losses.listwise}[config.loss]


def _share_of_positives(config: FinetuneConfig, stage: Stage) -> float:
    """What a fresh head first predicts."""
    share = float(stage.train.labels.mean())
    if config.loss == "pointwise" and stage.negatives_per_positive is not None:
        share = max(share, 1 / (1 + stage.negatives_per_positive))
    if stage.negatives_per_question is not None:
        right = int(stage.train.labels.sum())
        share = right / max(1, right + stage.negatives_per_question * stage.train.num_questions)
    return min(max(share, 0.01), 0.99)
