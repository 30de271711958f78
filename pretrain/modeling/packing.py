"""Places of sequences in a packed row, and which of their tokens see each other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# (queries, keys), both [..., heads, length, width] -> an addend of their scaled products, [..., heads, length, length]
Bias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Packing:
    """Holds where each of n sequences lies in a packed row of T tokens, which ``padding`` tokens follow.

    starts      [n + 1] int32
    sequence    [T] int64     the sequence that each token is of
    position    [T] int64     its place there
    cuts        [n + 2] int32  ``starts``, and where the padding ends
    longest     of ``max_length`` and the padding
    bounds      ``starts`` as Python ints; None on a GPU, where reading them would synchronise
    """

    starts: Tensor
    sequence: Tensor
    position: Tensor
    max_length: int
    cuts: Tensor
    longest: int
    padding: int
    bounds: list[int] | None

    @staticmethod
    def of(starts: Tensor, position_ids: Tensor, max_length: int, padding: int = 0) -> "Packing":
        sequence = torch.repeat_interleave(
            torch.arange(len(starts) - 1, device=starts.device), starts.diff(), output_size=len(position_ids)
        )
        cuts = F.pad(starts, (0, 1), value=len(position_ids) + padding)
        bounds = starts.tolist() if starts.device.type == "cpu" else None
        longest = max(max_length, padding)
        return Packing(starts, sequence, position_ids.long(), max_length, cuts, longest, padding, bounds)

    @property
    def slots(self) -> Tensor:
        """Returns each token's place in the padded ``[n, max_length]`` layout, flattened, ``[T]`` int64."""
        return self.sequence * self.max_length + self.position

    @property
    def mask(self) -> Tensor:
        """Returns True at tokens in that layout, ``[n, max_length]``."""
        return torch.arange(self.max_length, device=self.starts.device) < self.starts.diff()[:, None]


def find_far_apart(length: int, window: int, device: torch.device) -> Tensor:
    """Returns which tokens do not see each other, ``[length, length]``."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() >= window
