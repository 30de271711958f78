"""The contrastive loss of embeddings, and the sums that become its figures in the log.

Each query is compared with the texts of a whole global batch, so that the loss is not a sum over micro-batches, see
cached.py. Beside it stand, as of each objective's pairs, ``ssp/queries``, ``ssp/firsts`` (those whose own text is the
most similar) and ``ssp/reciprocal_ranks``.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CONTRASTIVE_SUMS = ("pair_loss", "queries", "firsts", "reciprocal_ranks")


class Compared(NamedTuple):
    """Holds how each of r queries fares among all candidates, ``[r]`` each.

    losses:  in nats
    cosines: to the text that belongs to it
    ranks:   of that text, from 1 on; a candidate that is as similar counts half
    """

    losses: Tensor
    cosines: Tensor
    ranks: Tensor


def compare_texts(
    embeddings: Tensor,
    rows: slice,
    temperature: float,
    symmetric: bool = False,
    barred: tuple[Tensor, Tensor] | None = None,
) -> Compared:
    """Computes multiple-negatives ranking: cross-entropy of each query's own text among the texts of all pairs.

    embeddings:  ``[N, m, hidden]`` of length 1: of N pairs the query, the text that belongs to it, and m - 2 negatives
    rows:        the queries that are compared; with all texts, whichever pair they are of
    temperature: the divisor of cosines
    symmetric:   the mean with the cross-entropy of a text's own query among all queries
    barred:      known answers, which are no negatives of these queries: bools ``[r, texts]``, the N own texts first,
                 then the negatives of each pair in turn; and bools ``[r, N]``, the same of queries for the texts of
                 these rows
    """
    query, positive = embeddings[rows, 0], embeddings[rows, 1]
    texts = torch.cat([embeddings[:, 1], embeddings[:, 2:].flatten(0, 1)])
    place = torch.arange(len(embeddings), device=embeddings.device)[rows]
    cosines = query @ texts.T
    if barred:
        cosines = cosines.masked_fill(barred[0], float("-inf"))
    losses = F.cross_entropy(cosines / temperature, place, reduction="none")
    if symmetric:
        back = positive @ embeddings[:, 0].T
        if barred:
            back = back.masked_fill(barred[1], float("-inf"))
        losses = (losses + F.cross_entropy(back / temperature, place, reduction="none")) / 2
    with torch.no_grad():
        to_positive = cosines.gather(1, place[:, None])
        equal = (cosines == to_positive).sum(1) - 1
        ranks = 1 + (cosines > to_positive).sum(1) + equal / 2
    return Compared(losses, to_positive[:, 0].detach(), ranks)


def bar_known(groups: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Returns which texts are no negatives of some queries, for ``compare_texts``.

    These are other pairs' texts of a query's document, and texts that equal its positive; a pair's negatives stay.

    groups: of N pairs, ``[N, m, 2]``
    """
    num_pairs, m, _ = groups.shape
    pair = torch.arange(num_pairs, device=groups.device)
    texts = torch.cat([groups[:, 1], groups[:, 2:].flatten(0, 1)])
    pair_of_text = torch.cat([pair, pair.repeat_interleave(m - 2)])
    query, positive, place = groups[rows, 0, None], groups[rows, 1, None], pair[rows, None]

    def find(candidates: Tensor, pair_of_candidate: Tensor, like: Tensor) -> Tensor:
        document, text = candidates.unbind(-1)
        same = (document == query[..., 0]) | (document == positive[..., 0]) | (text == like[..., 1])
        return same & (pair_of_candidate != place)

    return find(texts, pair_of_text, positive), find(groups[:, 0], pair, query)


def add_up_queries(compared: Compared, part: Tensor, num_parts: int) -> Tensor:
    """Returns CONTRASTIVE_SUMS of each part in turn, ``[num_parts * len(CONTRASTIVE_SUMS)]``; part: ``[r]``"""
    group = F.one_hot(part.long(), num_parts).double()
    losses, ranks = compared.losses.detach().double(), compared.ranks.double()
    return (group.T @ torch.stack([losses, torch.ones_like(losses), (ranks == 1).double(), 1 / ranks], 1)).flatten()
