"""The sums that a forward pass leaves, by name; metrics.py turns them into figures.

Token sums stand first, then those of each objective's pairs: ``ssp/pair_loss``, ``ssp/hard_pairs`` and so on.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from data_pipeline.sampling.pairs import KINDS

MLM_SUMS = ("mlm_loss", "mlm_correct", "mlm_tokens")
RTD_SUMS = ("rtd_loss", "rtd_tokens", "rtd_replaced", "rtd_called", "rtd_found")
PAIR_SUMS = ("pair_loss", *(f"{kind}_pairs" for kind in KINDS), *(f"{kind}_called_positive" for kind in KINDS))


class LossWeights(NamedTuple):
    """What the mean losses are multiplied by: Di Liello et al., 2022, appendix B, for ELECTRA."""

    mlm: float = 1.0
    pair: float = 1.0
    rtd: float = 50.0


PAPER_WEIGHTS = LossWeights()


def sum_names(token_sums: tuple[str, ...], objectives: tuple[str, ...]) -> tuple[str, ...]:
    return (*token_sums, *(f"{objective}/{name}" for objective in objectives for name in PAIR_SUMS))


def mlm_sums(logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """MLM_SUMS of vocabulary logits ``[M, vocab]``, the ids that stood there ``[M]``, and the summed loss."""
    correct = (logits.argmax(-1) == labels).sum()
    return _stack(loss, correct, len(labels))


def rtd_sums(logits: torch.Tensor, replaced: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """RTD_SUMS of token logits ``[T]``, which tokens were replaced ``[T]``, and the summed loss."""
    called = logits > 0
    return _stack(loss, len(logits), replaced.sum(), called.sum(), (called & replaced).sum())


def pair_sums(
    logits: torch.Tensor, losses: torch.Tensor, kinds: torch.Tensor, part: torch.Tensor, num_parts: int
) -> torch.Tensor:
    """PAIR_SUMS of each part in turn, ``[num_parts * len(PAIR_SUMS)]``; all arguments ``[n]``.

    A product with one-hot rows: it adds up in one order on a GPU, and the host does not wait for it.
    """
    group = F.one_hot(part.long() * len(KINDS) + kinds.long(), num_parts * len(KINDS)).double()
    items = torch.stack([losses.double(), torch.ones_like(losses, dtype=torch.float64), (logits > 0).double()], 1)
    sums = (group.T @ items).view(num_parts, len(KINDS), 3)
    return torch.cat([sums[..., 0].sum(1, keepdim=True), sums[..., 1], sums[..., 2]], 1).flatten()


def _stack(*values: torch.Tensor | int) -> torch.Tensor:
    device = next(v.device for v in values if isinstance(v, torch.Tensor))
    return torch.stack(
        [
            v.double() if isinstance(v, torch.Tensor) else torch.full((), float(v), device=device).double()
            for v in values
        ]
    )
