"""Updates a cross-encoder: its losses, forward and backward over micro-batches, then the optimizer's step.

A group is what an epoch is made of (see groups.py): a single pair for the pointwise loss, an answer and some negatives
of its question for the others. Every loss takes ``logits`` (float ``[n]``), ``labels`` and ``group_of`` (integers
``[n]``) of a micro-batch, and returns the sum over its groups.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from finetune.ranking.encode import EncodedPairs
from pretrain.engine.deepspeed_compat import Engine, guard_update, nan_guard, read_outcome
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.engine.watch import note_place
from pretrain.modeling.cpu.dropout import decide_dropout

from .groups import Groups, read_labels

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def pointwise(
    logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor, positive_weight: float = 1.0
) -> torch.Tensor:
    """Computes the binary cross-entropy of each pair; that of an answer counts ``positive_weight`` times.

    Garg et al., 2020, section 3.2: their softmax over two logits is the sigmoid of one.
    """
    weight = torch.tensor(positive_weight, device=logits.device)
    return F.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=weight, reduction="sum")


def pairwise(logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor) -> torch.Tensor:
    """Computes RankNet's loss (Burges et al., 2005): ``log(1 + exp(negative - positive))``, its mean in each group."""
    positive = logits.new_zeros(int(group_of.max()) + 1).index_add(0, group_of, logits * labels)  # one per group
    negatives = labels == 0
    margins = logits[negatives] - positive[group_of[negatives]]
    count = torch.bincount(group_of[negatives], minlength=len(positive)).clamp(min=1)
    return (F.softplus(margins) / count[group_of[negatives]]).sum()


def listwise(logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor) -> torch.Tensor:
    """Computes ListNet's top-one loss (Cao et al., 2007) with one answer per group: cross-entropy of the softmax."""
    groups = int(group_of.max()) + 1
    highest = logits.new_full((groups,), float("-inf")).scatter_reduce(0, group_of, logits.detach(), "amax")
    total = logits.new_zeros(groups).index_add(0, group_of, (logits - highest[group_of]).exp())
    chosen = labels == 1
    return (total.log()[group_of[chosen]] + highest[group_of[chosen]] - logits[chosen]).sum()


LOSSES: dict[str, Loss] = {"pointwise": pointwise, "pairwise": pairwise, "listwise": listwise}


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

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """Returns the tokens of rows."""
        return self.pairs.measure(rows)

    def update(self, engine: Engine, groups: Groups, batch: np.ndarray, step: int) -> Outcome:
        """Trains on the groups whose numbers are in ``batch``, the global batch of update ``step``, with all ranks.

        The loss is its sum over the global batch divided by the number of groups in it, however the batch is cut:
        DeepSpeed divides by the micro-steps and averages over ranks, which the scale takes back. An update that is not
        finite is skipped on all ranks.

        batch: may be shorter than the layout's, as the last one of an epoch is
        """
        layout, rank = self.layout, self.rank
        scale = layout.world * layout.accumulation / len(batch)
        sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
        norm = None
        engine.module.train()
        for number, (start, end) in enumerate(layout.micro_batches(rank, len(batch))):
            real = end > start  # an empty share stands in with a group at no weight, because collectives must match
            rows, group_of = groups.select(batch[start:end] if real else batch[-1:])
            note_place(f"step {step}, micro-batch {number}")
            with decide_dropout(self.seed, step, rank * layout.accumulation + number, rows):
                logits = engine(**self.pairs.pack(rows, engine.device))
            labels = torch.from_numpy(read_labels(self.labels, rows).astype(np.int64)).to(engine.device)
            loss = self.loss(logits.float(), labels, torch.from_numpy(group_of).to(engine.device))
            if real:
                sums += torch.stack([loss.detach().double(), sums.new_tensor(end - start)])
                loss = loss * nan_guard(loss)
            engine.backward(loss * (scale if real else 0.0))
            if number == layout.accumulation - 1:
                norm = guard_update(engine)
            engine.step()
        skipped, norm = read_outcome(engine, norm)
        return Outcome(sums.masked_fill(skipped, 0.0), norm, skipped)
