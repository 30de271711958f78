"""The contrastive loss of a global batch, whose texts are compared with those of all ranks and micro-batches.

No memory holds the graph of so many texts. So gradients are cached (Gao et al., 2021, "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup"): all texts are embedded without a graph; of these embeddings the loss
and its gradient are computed; then each micro-batch is embedded again, by the same masks of dropout, and its gradient
goes on from that of its embeddings. The gradient is that of the plain loss, however the batch is cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.sampling.batch import Batch
from pretrain.modeling.losses import CHUNK
from pretrain.runtime.layout import Layout
from pretrain.runtime.ranks import sum_over_ranks

from .losses import add_up_queries, compare_texts
from .model import SiameseModel

Pass = tuple[torch.Tensor, ...]  # what a forward pass of SiameseModel returns


@dataclass(frozen=True)
class Slopes:
    """What this rank's micro-batches go on from.

    of_batches: of each micro-batch the gradient of the summed loss by its embeddings, ``[n, m, hidden]``; None of an
                empty one
    sums:       of the pair loss over this rank's queries, as of losses.add_up_queries
    only:       the pass of the only micro-batch, which has its graph: it need not run again
    """

    of_batches: list[torch.Tensor | None]
    sums: torch.Tensor
    only: Pass | None


def find_slopes(
    model: SiameseModel,
    batches: Sequence[Batch | None],
    forward: Callable[[int, bool], Pass],
    layout: Layout,
    rank: int,
) -> Slopes:
    """The gradient of the summed contrastive loss of the global batch by this rank's embeddings. All ranks call it.

    model:   the module that the engine wraps
    forward: the pass of the micro-batch of this number, or of what stands in for an empty one; embeddings alone, or all

    Each rank compares its own queries with the texts of all, and the gradients add up over the ranks.
    """
    only = forward(0, False) if len(batches) == 1 else None
    with torch.no_grad():
        found = [only[2].detach()] if only else [forward(number, True)[2] for number in range(len(batches))]
    own = [(batch, embeddings) for batch, embeddings in zip(batches, found, strict=True) if batch]
    start, end = layout.share(rank)
    every = found[0].new_zeros(layout.size, *found[0].shape[1:])
    if own:
        every[start:end] = torch.cat([embeddings for _, embeddings in own])
    every = sum_over_ranks(every).requires_grad_()
    every.grad = torch.zeros_like(every)
    sums = torch.zeros(len(model.pair_sum_names), dtype=torch.float64, device=every.device)
    for rows in split_rows(start, end, layout.size * (every.shape[1] - 1)):
        compared = compare_texts(every, rows, model.temperature, model.symmetric)
        compared.losses.sum().backward()
        parts = np.concatenate([batch.part for batch, _ in own])[rows.start - start : rows.stop - start]
        sums += add_up_queries(compared, torch.from_numpy(parts).to(every.device), len(model.objectives))
    gradient = sum_over_ranks(every.grad)[start:end]
    of_own = iter(gradient.split([batch.num_pairs for batch, _ in own]))
    return Slopes([next(of_own) if batch else None for batch in batches], sums, only)


def go_on(embeddings: torch.Tensor, slope: torch.Tensor | None) -> torch.Tensor:
    """What has this gradient by the embeddings; nothing where they stand in for an empty micro-batch."""
    return (embeddings * (torch.zeros_like(embeddings) if slope is None else slope)).sum()


def split_rows(start: int, end: int, texts: int) -> list[slice]:
    """The queries ``start .. end`` a few at a time, so that their cosines to so many texts take little memory."""
    rows = max(1, CHUNK // texts)
    return [slice(first, min(first + rows, end)) for first in range(start, end, rows)]
