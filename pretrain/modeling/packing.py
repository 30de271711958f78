"""Where each sequence lies in a packed row, and which of its tokens see each other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

# (queries, keys), both [..., heads, length, width] -> what their scaled products get, [..., heads, length, length]
Bias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Packing:
    """Where each of n sequences lies in a packed row of T tokens, which ``padding`` tokens of no sequence follow.

    starts      [n + 1] int32
    sequence    [T] int64     the sequence that each token is of
    position    [T] int64     its place there
    cuts        [n + 2] int32  ``starts``, and where the padding ends
    longest     of ``max_length`` and the padding
    bounds      ``starts`` as numbers; None where they are on a GPU, which nobody waits for
    """

    starts: torch.Tensor
    sequence: torch.Tensor
    position: torch.Tensor
    max_length: int
    cuts: torch.Tensor
    longest: int
    padding: int
    bounds: list[int] | None

    @staticmethod
    def of(starts: torch.Tensor, position_ids: torch.Tensor, max_length: int, padding: int = 0) -> "Packing":
        sequence = torch.repeat_interleave(
            torch.arange(len(starts) - 1, device=starts.device), starts.diff(), output_size=len(position_ids)
        )
        cuts = F.pad(starts, (0, 1), value=len(position_ids) + padding)
        bounds = starts.tolist() if starts.device.type == "cpu" else None
        longest = max(max_length, padding)
        return Packing(starts, sequence, position_ids.long(), max_length, cuts, longest, padding, bounds)

    @property
    def slots(self) -> torch.Tensor:
        """Each token's place in the padded ``[n, max_length]`` layout, flattened, ``[T]`` int64."""
        return self.sequence * self.max_length + self.position

    @property
    def mask(self) -> torch.Tensor:
        """True at tokens in that layout, ``[n, max_length]``."""
        return torch.arange(self.max_length, device=self.starts.device) < self.starts.diff()[:, None]


def find_far_apart(length: int, window: int, device: torch.device) -> torch.Tensor:
    """``[length, length]``: which tokens do not see each other."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() >= window
