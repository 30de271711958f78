"""The contrastive loss of embeddings, and the sums that become its metrics in the log.

Each query is compared with the texts of the global batch, so that the loss is not a sum over micro-batches, see
cached.py. The sums are, for each objective's queries, ``ssp/pair_loss``, ``ssp/queries``, ``ssp/firsts`` (queries whose
own text is the most similar) and ``ssp/reciprocal_ranks``.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CONTRASTIVE_SUMS = ("pair_loss", "queries", "firsts", "reciprocal_ranks")


class Compared(NamedTuple):
    """Holds how r queries rank their own texts among all candidates, ``[r]`` each.

    losses: in nats
    ranks:  of the own text, from 1; each equally similar candidate adds one half
    """

    losses: Tensor
    ranks: Tensor


def compare_texts(embeddings: Tensor, rows: slice, temperature: float, barred: Tensor | None = None) -> Compared:
    """Computes the multiple-negatives ranking loss: cross-entropy of each query's own text among all pairs' texts.

    embeddings:  ``[N, m, hidden]``, normalised: for each of N pairs the query, its own text, and m - 2 negatives
    rows:        the r queries to compare with all texts
    barred:      ``[r, texts]`` candidates to leave out, see bar_known; the N own texts, then each pair's negatives
    """
    query = embeddings[rows, 0]
    texts = torch.cat([embeddings[:, 1], embeddings[:, 2:].flatten(0, 1)])
    own = torch.arange(len(embeddings), device=embeddings.device)[rows]
    cosines = query @ texts.T
    if barred is not None:
        cosines = cosines.masked_fill(barred, float("-inf"))
    losses = F.cross_entropy(cosines / temperature, own, reduction="none")
    with torch.no_grad():
        own_cosines = cosines.gather(1, own[:, None])
        equal = (cosines == own_cosines).sum(1) - 1
        ranks = 1 + (cosines > own_cosines).sum(1) + equal / 2
    return Compared(losses, ranks)


def bar_known(groups: Tensor, rows: slice) -> Tensor:
    """Returns which candidates are right answers to some queries, and so no negatives, ``[r, texts]``.

    These are other pairs' texts from a query's documents, those of pairs with the same query, and copies of its own
    text. A pair's own negatives stay.

    groups: Batch.groups of N pairs, ``[N, m, 2]``
    """
    num_pairs, m, _ = groups.shape
    pair = torch.arange(num_pairs, device=groups.device)
    texts = torch.cat([groups[:, 1], groups[:, 2:].flatten(0, 1)])
    pair_of_text = torch.cat([pair, pair.repeat_interleave(m - 2)])
    query, positive = groups[rows, 0, None], groups[rows, 1, None]
    document, text = texts.unbind(-1)
    is_known = (document == query[..., 0]) | (document == positive[..., 0]) | (text == positive[..., 1])
    is_known |= groups[pair_of_text, 0, 1] == query[..., 1]
    return is_known & (pair_of_text != pair[rows, None])


def add_up_queries(compared: Compared, part: Tensor, num_parts: int) -> Tensor:
    """Returns CONTRASTIVE_SUMS for each part in turn, ``[num_parts * len(CONTRASTIVE_SUMS)]``; part: ``[r]``"""
    group = F.one_hot(part.long(), num_parts).double()
    losses, ranks = compared.losses.detach().double(), compared.ranks.double()
    return (group.T @ torch.stack([losses, torch.ones_like(losses), (ranks == 1).double(), 1 / ranks], 1)).flatten()
