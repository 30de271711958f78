"""Deals a global batch to ranks, and cuts it into micro-batches."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Deals global batches of ``size`` pairs to ``world`` ranks, in shares that need not be equal.

    All ranks take the same number of micro-steps, because DeepSpeed's collectives must match; a rank that has no pairs
    left contributes zero.

    micro:  maximum number of pairs in a micro-batch; on average, if micro-batches are cut to equal tokens
    padded: the model pads each micro-batch to its longest pair, so that its work depends on pairs, not on tokens
    """

    size: int
    micro: int
    world: int
    padded: bool = False

    @property
    def accumulation(self) -> int:
        """Returns the number of micro-steps of every rank, which the largest share determines."""
        largest_share = math.ceil(self.size / self.world)
        return math.ceil(largest_share / self.micro)

    @property
    def largest(self) -> int:
        """Returns the number of pairs in the largest micro-batch, if all have near-equal numbers."""
        return math.ceil(math.ceil(self.size / self.world) / self.accumulation)

    @property
    def full_pairs(self) -> int:
        """Returns a number of full-length pairs that has at least as many tokens as any micro-batch."""
        if self.world > 1 and not self.padded and self.size > self.world:
            share = self.size / self.world + 1
            return min(self.size, math.ceil(share if self.accumulation == 1 else share / self.accumulation + 1))
        exact = self.padded or self.accumulation == 1 or self.largest == 1
        return self.largest if exact else self.largest + 1

    def share(self, rank: int, count: int | None = None) -> tuple[int, int]:
        """Returns the rank's pairs, ``[start, end)``, in a global batch of ``count`` pairs (default: ``size``)."""
        count = self.size if count is None else count
        return rank * count // self.world, (rank + 1) * count // self.world

    def deal(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns each rank's share as ``[start, end)``, with near-equal tokens, or pairs if the model pads."""
        if self.padded:
            return [self.share(rank) for rank in range(self.world)]
        return cut_evenly(lengths, self.world)

    def micro_batches(self, rank: int, count: int | None = None) -> list[tuple[int, int]]:
        """Returns the rank's micro-batches as ``[start, end)`` within a global batch; some may be empty."""
        start, end = self.share(rank, count)
        cuts = [start + (end - start) * k // self.accumulation for k in range(self.accumulation + 1)]
        return list(pairwise(cuts))

    def cut(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns a share's micro-batches as ``[start, end)``, with near-equal tokens, or pairs if the model pads."""
        return cut_evenly(np.ones_like(lengths) if self.padded else lengths, self.accumulation)


def cut_evenly(lengths: np.ndarray, pieces: int) -> list[tuple[int, int]]:
    """Cuts a sequence of items with these lengths ``[n]`` into pieces of near-equal length; returns ``[start, end)``.

    Each cut is as near as possible to an exact one, so that no piece is longer than the mean plus the longest item. If
    there are fewer items than pieces, the last pieces are empty.
    """
    n, num_filled = len(lengths), max(min(pieces, len(lengths)), 1)
    middles = np.cumsum(lengths) - lengths / 2  # an item is before a cut if its middle is
    index = np.arange(1, num_filled)
    cuts = np.searchsorted(middles, index * (lengths.sum() / num_filled))
    # Around an item longer than the mean, cuts coincide: they move apart until each piece has an item.
    cuts = np.maximum.accumulate(cuts - index) + index
    cuts = np.clip(cuts, index, n - num_filled + index)
    return list(pairwise([0, *cuts.tolist(), *[n] * (pieces - num_filled + 1)]))
