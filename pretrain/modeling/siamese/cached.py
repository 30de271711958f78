"""The contrastive loss of a global batch, which compares texts across all ranks and micro-batches.

Gradients are cached (Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"): all
texts are embedded without a graph; the loss and its gradient are computed from the embeddings; then each micro-batch is
embedded again with the same dropout masks, and backpropagates the gradient of its embeddings.
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

CHUNK = 2**24  # number of cosines in memory at a time: 64 MB
Pass = tuple[Tensor, ...]  # a forward pass's output; the embeddings are last
# (embeddings of all pairs, rows of r queries) -> (their losses [r], sums for the log [num_sums])
Comparison = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class CachedGradients:
    """Holds the gradients from which this rank's micro-batches backpropagate.

    of_batches: for each micro-batch the gradient of the summed loss by its embeddings; None if it is empty
    sums:       sums for the log, over this rank's queries
    only:       if there is one micro-batch, its forward pass with the graph, which need not run again
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

    sizes:   number of pairs in each of this rank's micro-batches; 0 if it is empty
    forward: (index of a micro-batch, whether only embeddings are needed) -> its forward pass, on a filler if empty
    share:   the range of this rank's pairs in the global batch, ``[start, end)``
    size:    number of pairs in the global batch
    """
    only = forward(0, False) if len(sizes) == 1 else None
    with torch.no_grad():
        embedded = [only[-1].detach()] if only else [forward(index, True)[-1] for index in range(len(sizes))]
    filled = [embeddings for pairs, embeddings in zip(sizes, embedded, strict=True) if pairs]
    start, end = share
    all_embeddings = embedded[0].new_zeros(size, *embedded[0].shape[1:])
    if filled:
        all_embeddings[start:end] = torch.cat(filled)
    all_embeddings = sum_over_ranks(all_embeddings).requires_grad_()
    all_embeddings.grad = torch.zeros_like(all_embeddings)
    sums = torch.zeros(num_sums, dtype=torch.float64, device=all_embeddings.device)
    for rows in split_rows(start, end, size * (all_embeddings.shape[1] - 1)):
        losses, row_sums = compare(all_embeddings, rows)
        losses.sum().backward()
        sums += row_sums
    gradient = sum_over_ranks(all_embeddings.grad)[start:end]
    gradients = iter(gradient.split([pairs for pairs in sizes if pairs]))
    return CachedGradients([next(gradients) if pairs else None for pairs in sizes], sums, only)


def compare_objectives(model: SiameseModel, batches: Sequence[Batch | None], start: int, groups: Tensor) -> Comparison:
    """Returns pre-training's comparison, with the sums of losses.add_up_queries for the log.

    start:  index of this rank's first pair in the global batch
    groups: Batch.groups of the global batch, ``[N, m, 2]``
    """
    parts = np.concatenate([np.zeros(0, dtype=np.int16), *(batch.part for batch in batches if batch)])

    def compare(all_embeddings: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        compared = compare_texts(all_embeddings, rows, model.temperature, bar_known(groups, rows))
        part = torch.from_numpy(parts[rows.start - start : rows.stop - start]).to(all_embeddings.device)
        return compared.losses, add_up_queries(compared, part, len(model.objectives))

    return compare


def surrogate_loss(embeddings: Tensor, gradient: Tensor | None) -> Tensor:
    """Returns a scalar whose gradient with respect to ``embeddings`` is ``gradient``; 0 for an empty micro-batch."""
    return (embeddings * (torch.zeros_like(embeddings) if gradient is None else gradient)).sum()


def split_rows(start: int, end: int, texts: int) -> list[slice]:
    """Splits the queries ``[start, end)`` so that each part has at most CHUNK cosines to ``texts`` texts."""
    rows = max(1, CHUNK // texts)
    return [slice(first, min(first + rows, end)) for first in range(start, end, rows)]
