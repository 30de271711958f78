"""Losses of a ranker over groups of candidates; the candidates of a group belong to one question.

A group is what an epoch is made of (see groups.py): a single pair for the pointwise loss, an answer and some
negatives for the others. Every loss takes ``logits`` (float ``[n]``), ``labels`` and ``group_of`` (integers ``[n]``) of
a micro-batch, and returns the sum over its groups. Training divides it by the number of groups in the global batch
(see update.py), so that the gradient does not depend on how a batch is cut.
"""

import torch
import torch.nn.functional as F

LOSSES = ("pointwise", "pairwise", "listwise")


def pointwise(
    logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor, positive_weight: float = 1.0
) -> torch.Tensor:
    """Binary cross-entropy of each pair; that of an answer counts ``positive_weight`` times.

    Garg et al., 2020, section 3.2: their softmax over two logits is the sigmoid of one.
    """
    weight = torch.tensor(positive_weight, device=logits.device)
    return F.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=weight, reduction="sum")


def pairwise(logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor) -> torch.Tensor:
    """RankNet (Burges et al., 2005): ``log(1 + exp(negative - positive))``, averaged over the negatives of a group."""
    positive = logits.new_zeros(int(group_of.max()) + 1).index_add(0, group_of, logits * labels)  # one per group
    negatives = labels == 0
    margins = logits[negatives] - positive[group_of[negatives]]
    count = torch.bincount(group_of[negatives], minlength=len(positive)).clamp(min=1)
    return (F.softplus(margins) / count[group_of[negatives]]).sum()


def listwise(logits: torch.Tensor, labels: torch.Tensor, group_of: torch.Tensor) -> torch.Tensor:
    """ListNet's top-one loss (Cao et al., 2007) with one answer per group: cross-entropy of the softmax over it."""
    groups = int(group_of.max()) + 1
    highest = logits.new_full((groups,), float("-inf")).scatter_reduce(0, group_of, logits.detach(), "amax")
    total = logits.new_zeros(groups).index_add(0, group_of, (logits - highest[group_of]).exp())
    chosen = labels == 1
    return (total.log()[group_of[chosen]] + highest[group_of[chosen]] - logits[chosen]).sum()
