"""The losses, computed from logits, and the sums that become the log's metrics.

Each loss is a sum, which training divides by a count of the *global* batch, so that the gradient does not depend on how
the batch is divided. Each also returns sums for the log: those of tokens first, then those of each objective's pairs,
``ssp/pair_loss``, ``ssp/hard_pairs`` and so on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from data_pipeline.sampling.pairs import KINDS

MLM_SUMS = ("mlm_loss", "mlm_correct", "mlm_tokens")
RTD_SUMS = ("rtd_loss", "rtd_tokens", "rtd_replaced", "rtd_called", "rtd_found")
PAIR_SUMS = ("pair_loss", *(f"{kind}_pairs" for kind in KINDS), *(f"{kind}_called_positive" for kind in KINDS))

# Number of vocabulary logits that are copied to fp32 at a time, twice: 128 MB, and 1 GB on a GPU for larger kernels
CHUNKS = {"cpu": 2**24, "cuda": 2**27}


@dataclass(frozen=True)
class Loss:
    """Names a loss as in LossWeights. ``count``: the property of Batch that divides its sum"""

    name: str
    count: str


MLM = Loss("mlm", count="num_masked")
RTD = Loss("rtd", count="num_tokens")
PAIR = Loss("pair", count="num_pairs")


class LossWeights(NamedTuple):
    """Holds the weights of the mean losses, by default those of Di Liello et al., 2022, appendix B, for ELECTRA."""

    mlm: float = 1.0
    pair: float = 1.0
    rtd: float = 50.0


PAPER_WEIGHTS = LossWeights()


def compute_mlm_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed cross-entropy of vocabulary logits ``[M, vocab]`` and the masked ids ``[M]``, and MLM_SUMS.

    The backward pass overwrites the logits with their gradient.
    """
    loss, correct = _VocabularyLoss.apply(logits, labels)
    with torch.no_grad():
        sums = _stack(loss, correct, len(labels))
    return loss, sums


class _VocabularyLoss(torch.autograd.Function):
    """Computes the summed cross-entropy in fp32, and the number of rows whose largest logit is the label's.

    Logits are the largest tensor of a step: fp32 copies exist for a chunk of rows only, and the gradient overwrites
    the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        correct = torch.zeros((), dtype=torch.int64, device=logits.device)
        for rows, label in _split_rows(logits, labels):
            log_likelihood, num_correct = _sum_log_likelihood(rows, label)
            total -= log_likelihood
            correct += num_correct
        ctx.save_for_backward(logits, labels)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        for rows, label in _split_rows(logits, labels):
            _overwrite_by_gradient(rows, label, grads[0])
        return logits, None


def _sum_log_likelihood(rows: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the labels' summed log-likelihood, and the number of rows whose largest logit is the label's."""
    log_likelihood = torch.log_softmax(rows, -1, dtype=torch.float32).gather(1, label[:, None])
    return log_likelihood.sum(), (rows.argmax(-1) == label).sum()


def _overwrite_by_gradient(rows: Tensor, label: Tensor, scale: Tensor) -> None:
    """Overwrites the logits by the gradient of the summed cross-entropy, times ``scale``."""
    probability = torch.softmax(rows, -1, dtype=torch.float32)
    at_label = (probability.gather(1, label[:, None]) - 1.0) * scale
    torch.mul(probability, scale, out=rows)
    rows.scatter_(1, label[:, None], at_label.to(rows.dtype))


def compile_vocabulary_loss(backend: str) -> None:
    """Compiles one kernel each for the forward and backward of ``_VocabularyLoss``, for all models of this process."""
    global _sum_log_likelihood, _overwrite_by_gradient
    _sum_log_likelihood = torch.compile(_sum_log_likelihood, fullgraph=True, dynamic=True, backend=backend)
    _overwrite_by_gradient = torch.compile(_overwrite_by_gradient, fullgraph=True, dynamic=True, backend=backend)


def _split_rows(logits: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    rows = max(1, CHUNKS.get(logits.device.type, CHUNKS["cuda"]) // logits.shape[1])
    return zip(logits.split(rows), labels.split(rows), strict=True)


def compute_rtd_loss(logits: Tensor, replaced: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed binary cross-entropy of token logits and replaced tokens, both ``[T]``, and RTD_SUMS."""
    loss = F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="sum")
    with torch.no_grad():
        called = logits > 0
        sums = _stack(loss, len(logits), replaced.sum(), called.sum(), (called & replaced).sum())
    return loss, sums


def compute_pair_loss(
    logits: Tensor, labels: Tensor, kinds: Tensor, part: Tensor, num_parts: int
) -> tuple[Tensor, Tensor]:
    """Returns the summed binary cross-entropy of pairs, and PAIR_SUMS for each part in turn; arguments ``[n]``."""
    losses = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    with torch.no_grad():
        sums = add_up_pairs(logits, losses, kinds, part, num_parts)
    return losses.sum(), sums


def add_up_pairs(logits: Tensor, losses: Tensor, kinds: Tensor, part: Tensor, num_parts: int) -> Tensor:
    """Returns PAIR_SUMS for each part in turn, ``[num_parts * len(PAIR_SUMS)]``; all arguments are ``[n]``.

    It multiplies by one-hot rows, which a GPU sums in a fixed order and without the host waiting.
    """
    index = part.long() * len(KINDS) + kinds.long()
    group = (index[:, None] == torch.arange(num_parts * len(KINDS), device=part.device)).double()
    items = torch.stack([losses.double(), torch.ones_like(losses, dtype=torch.float64), (logits > 0).double()], 1)
    sums = (group.T @ items).view(num_parts, len(KINDS), 3)
    return torch.cat([sums[..., 0].sum(1, keepdim=True), sums[..., 1], sums[..., 2]], 1).flatten()


def name_sums(
    token_sums: tuple[str, ...], objectives: tuple[str, ...], pair_sums: tuple[str, ...] = PAIR_SUMS
) -> tuple[str, ...]:
    """Returns the names of all sums, in the order in which a forward pass returns them."""
    return (*token_sums, *(f"{objective}/{name}" for objective in objectives for name in pair_sums))


def _stack(loss: Tensor, *others: Tensor | int) -> Tensor:
    values = [x.double() if isinstance(x, Tensor) else loss.new_full((), x, dtype=torch.float64) for x in others]
    return torch.stack([loss.double(), *values])
