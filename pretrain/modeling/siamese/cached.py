"""The contrastive loss of a global batch, whose texts are compared with those of all ranks and micro-batches.

Gradients are cached (Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"): all
texts are embedded without a graph; of these embeddings the loss and its gradient are computed; then each micro-batch is
embedded again, by the same masks of dropout, and its gradient goes on from that of its embeddings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data_pipeline.sampling.batch import Batch
from pretrain.engine.ranks import sum_over_ranks

from .losses import add_up_queries, bar_known, compare_texts
from .model import SiameseModel

CHUNK = 2**24  # cosines that are there at a time: 64 MB
Pass = tuple[Tensor, ...]  # what a forward pass of SiameseModel returns; the last are the embeddings
# Of the embeddings of all pairs, and the rows of some queries: their losses [r], and sums for the log [num_sums]
Comparison = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class CachedGradients:
    """Holds the gradients by which this rank's micro-batches continue.

    of_batches: of each micro-batch the gradient of the summed loss by its embeddings; None of an empty one
    sums:       of the comparison, over this rank's queries
    only:       the pass of the only micro-batch, which has its graph: it need not run again
    """

    of_batches: list[Tensor | None]
    sums: Tensor
    only: Pass | None


def cache_gradients(
    compare: Comparison,
    num_sums: int,
    sizes: Sequence[int],
    forward: Callable[[int, bool], Pass],
    share: tuple[int, int],
    size: int,
) -> CachedGradients:
    """Returns the gradient of the global batch's summed contrastive loss by this rank's embeddings. All ranks call it.

    sizes:   pairs of each of this rank's micro-batches; 0 of an empty one
    forward: the pass of the micro-batch of this number, a filler for an empty one; embeddings alone, or all
    share:   this rank's pairs within the global batch, ``[start, end)``
    size:    pairs of the global batch
    """
    only = forward(0, False) if len(sizes) == 1 else None
    with torch.no_grad():
        embedded = [only[-1].detach()] if only else [forward(number, True)[-1] for number in range(len(sizes))]
    filled = [embeddings for pairs, embeddings in zip(sizes, embedded, strict=True) if pairs]
    start, end = share
    every = embedded[0].new_zeros(size, *embedded[0].shape[1:])
    if filled:
        every[start:end] = torch.cat(filled)
    every = sum_over_ranks(every).requires_grad_()
    every.grad = torch.zeros_like(every)
    sums = torch.zeros(num_sums, dtype=torch.float64, device=every.device)
    for rows in split_rows(start, end, size * (every.shape[1] - 1)):
        losses, of_rows = compare(every, rows)
        losses.sum().backward()
        sums += of_rows
    gradient = sum_over_ranks(every.grad)[start:end]
    of_filled = iter(gradient.split([pairs for pairs in sizes if pairs]))
    return CachedGradients([next(of_filled) if pairs else None for pairs in sizes], sums, only)


def compare_objectives(model: SiameseModel, batches: Sequence[Batch | None], start: int, groups: Tensor) -> Comparison:
    """Returns the comparison of pre-training, with the sums of each objective's queries, as of losses.add_up_queries.

    start:   where this rank's pairs begin in the global batch
    groups:  Batch.groups of the global batch, ``[N, m, 2]``
    """
    parts = np.concatenate([np.zeros(0, dtype=np.int16), *(batch.part for batch in batches if batch)])

    def compare(every: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        compared = compare_texts(every, rows, model.temperature, model.symmetric, bar_known(groups, rows))
        part = torch.from_numpy(parts[rows.start - start : rows.stop - start]).to(every.device)
        return compared.losses, add_up_queries(compared, part, len(model.objectives))

    return compare


def surrogate_loss(embeddings: Tensor, gradient: Tensor | None) -> Tensor:
    """Returns a scalar whose gradient with respect to ``embeddings`` is ``gradient``; 0 for an empty micro-batch."""
    return (embeddings * (torch.zeros_like(embeddings) if gradient is None else gradient)).sum()


def split_rows(start: int, end: int, texts: int) -> list[slice]:
    """Splits the queries ``start .. end``, so that their cosines to this many texts take little memory."""
    rows = max(1, CHUNK // texts)
    return [slice(first, min(first + rows, end)) for first in range(start, end, rows)]
