"""Updates a cross-encoder: forward and backward over micro-batches, then the optimizer's step.

The loss is the binary cross-entropy of each pair (Garg et al., 2020, section 3.2: their softmax over two logits is the
sigmoid of one).
"""

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


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The data and settings of all updates of a cross-encoder.

    pairs, labels: of the training set, row by row; labels int ``[N]``
    seed:          seed of dropout
    """

    pairs: EncodedPairs
    labels: np.ndarray
    layout: Layout
    rank: int
    seed: int

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of each row's pair."""
        return self.pairs.measure(rows)

    def update(self, engine: Engine, groups: Groups, batch: np.ndarray, step: int) -> Outcome:
        """Trains, with all ranks, on the groups of ``batch``, the global batch of update ``step``, by index.

        The loss is the sum over the global batch divided by its number of pairs, however the batch is divided:
        DeepSpeed divides by the micro-steps and averages over ranks, which ``scale`` undoes. An update that is not
        finite is skipped on all ranks. The last batch of an epoch may be shorter than the layout's.
        """
        layout, rank = self.layout, self.rank
        scale = layout.world * layout.accumulation / len(batch)
        sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
        norm = None
        engine.module.train()
        for number, (start, end) in enumerate(layout.micro_batches(rank, len(batch))):
            real = end > start  # an empty share computes a pair with weight 0, because collectives must match
            rows, _ = groups.select(batch[start:end] if real else batch[-1:])
            note_place(f"step {step}, micro-batch {number}")
            with decide_dropout(self.seed, step, rank * layout.accumulation + number, rows):
                logits = engine(**self.pairs.pack(rows, engine.device))
            labels = torch.from_numpy(read_labels(self.labels, rows).astype(np.float32)).to(engine.device)
            loss = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
            if real:
                sums += torch.stack([loss.detach().double(), sums.new_tensor(end - start)])
                loss = loss * nan_guard(loss)
            engine.backward(loss * (scale if real else 0.0))
            if number == layout.accumulation - 1:
                norm = guard_update(engine)
            engine.step()
        skipped, norm = read_outcome(engine, norm)
        return Outcome(sums.masked_fill(skipped, 0.0), norm, skipped)
