"""Updates a cross-encoder: forward and backward over micro-batches of groups, then the optimizer's step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from finetune.ranking.encode import EncodedPairs
from pretrain.engine.device_update import guard_update, nan_guard, read_outcome
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.modeling.cpu.dropout import decide_dropout

from .groups import Groups, read_labels

# (logits [n], labels [n], group of each [n]) -> the sum over the groups, see losses.py
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The data and settings of all updates of a cross-encoder.

    pairs, labels: of the training set, row by row; labels int ``[N]``
    layout:        how a batch of groups is dealt to ranks and cut into micro-batches
    seed:          of dropout
    """

    pairs: EncodedPairs
    labels: np.ndarray
    loss: Loss
    layout: Layout
    rank: int
    seed: int


def update_ranker(
    engine: Any,
    trainer: Trainer,
    groups: Groups,
    batch: np.ndarray,
    step: int,
    mark: Callable[[str], None] = lambda place: None,
) -> Outcome:
    """Trains on the groups whose numbers are in ``batch``, the global batch of update ``step``, with all ranks.

    The loss is its sum over the global batch divided by the number of groups in it, however the batch is cut: DeepSpeed
    divides by the micro-steps and averages over ranks, which the scale takes back. An update that is not finite is
    skipped on all ranks, see pretrain.engine.device_update. It returns the sums of the loss
    over this rank's groups, and of their number.

    batch: may be shorter than the layout's, as the last one of an epoch is
    mark:  called with the place within the step, for the watchdog
    """
    layout, rank = trainer.layout, trainer.rank
    scale = layout.world * layout.accumulation / len(batch)
    sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
    norm = None
    engine.module.train()
    for number, (start, end) in enumerate(layout.micro_batches(rank, len(batch))):
        real = end > start  # an empty share stands in with a group at no weight, because collectives must match
        rows, group_of = groups.select(batch[start:end] if real else batch[-1:])
        mark(f"step {step}, micro-batch {number}")
        with decide_dropout(trainer.seed, step, rank * layout.accumulation + number, rows):
            logits = engine(**trainer.pairs.pack(rows, engine.device))
        labels = torch.from_numpy(read_labels(trainer.labels, rows).astype(np.int64)).to(engine.device)
        loss = trainer.loss(logits.float(), labels, torch.from_numpy(group_of).to(engine.device))
        if real:
            sums += torch.stack([loss.detach().double(), sums.new_tensor(end - start)])
            loss = loss * nan_guard(loss)
        engine.backward(loss * (scale if real else 0.0))
        if number == layout.accumulation - 1:
            norm = guard_update(engine)
        engine.step()
    skipped, norm = read_outcome(engine, norm)
    return Outcome(sums.masked_fill(skipped, 0.0), norm, skipped)
