"""Where sequences lie in a packed row, and which of their tokens attend to each other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# (queries, keys), both [..., heads, length, width] -> what is added to their scores, [..., heads, length, length]
Bias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Packing:
    """Holds where each of n sequences lies in a packed row of T tokens, which ``padding`` tokens follow.

    starts      [n + 1] int32  offsets of the sequences' first tokens, and T
    sequence    [T] int64      index of each token's sequence
    position    [T] int64      index of each token in its sequence
    cuts        [n + 2] int32  ``starts``, and where the padding ends
    longest     the larger of ``max_length`` and ``padding``
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
        """Returns each token's index in a flattened, padded ``[n, max_length]`` layout, ``[T]`` int64."""
        return self.sequence * self.max_length + self.position

    @property
    def mask(self) -> Tensor:
        """Returns which entries of that layout hold a token, ``[n, max_length]``."""
        return torch.arange(self.max_length, device=self.starts.device) < self.starts.diff()[:, None]


def find_far_apart(length: int, window: int, device: torch.device) -> Tensor:
    """Returns which tokens are ``window`` or more positions apart, ``[length, length]``."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() >= window
