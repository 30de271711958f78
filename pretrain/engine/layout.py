"""Deals a global batch to ranks, and cuts it into micro-batches."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Deals global batches of ``size`` pairs to ``world`` ranks, in shares that need not be equal.

    Pre-training balances tokens (``deal``, ``cut``), fine-tuning pairs (``share``, ``micro_batches``). All ranks take
    equally many micro-steps, because DeepSpeed's collectives must match; a rank without pairs contributes zero.

    micro:  maximum number of pairs in a micro-batch, or in the average one if they have near-equal tokens
    padded: the model pads each micro-batch to its longest pair, so that its work depends on pairs, not on tokens
    """

    size: int
    micro: int
    world: int
    padded: bool = False

    @property
    def accumulation(self) -> int:
        """Returns the number of micro-steps of every rank, which the largest share determines."""
        return math.ceil(math.ceil(self.size / self.world) / self.micro)

    @property
    def largest(self) -> int:
        """Returns the number of pairs in the largest micro-batch, if micro-batches have near-equal numbers of pairs."""
        return math.ceil(math.ceil(self.size / self.world) / self.accumulation)

    @property
    def full_pairs(self) -> int:
        """Returns an upper bound on the tokens of a micro-batch, as a number of full-length pairs."""
        if self.padded or self.size <= self.world or (self.world == 1 and self.largest == 1):
            return self.largest
        # Each cut by tokens, into shares and then into micro-batches, gives at most the mean plus one full-length pair.
        share = self.size if self.world == 1 else self.size / self.world + 1
        return min(self.size, math.ceil(share if self.accumulation == 1 else share / self.accumulation + 1))

    def share(self, rank: int, count: int | None = None) -> tuple[int, int]:
        """Returns a rank's share, ``[start, end)``, of a global batch of ``count`` pairs (default: ``size``)."""
        count = self.size if count is None else count
        return rank * count // self.world, (rank + 1) * count // self.world

    def deal(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns all ranks' shares, ``[start, end)``, with near-equal tokens, or pairs if the model pads."""
        if self.padded:
            return [self.share(rank) for rank in range(self.world)]
        return cut_evenly(lengths, self.world)

    def micro_batches(self, rank: int, count: int | None = None) -> list[tuple[int, int]]:
        """Cuts the rank's ``share`` into micro-batches ``[start, end)`` of near-equal numbers of pairs, perhaps 0."""
        start, end = self.share(rank, count)
        return list(pairwise([start + (end - start) * k // self.accumulation for k in range(self.accumulation + 1)]))

    def cut(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Cuts a share into micro-batches ``[start, end)`` with near-equal tokens, or pairs if the model pads."""
        return cut_evenly(np.ones_like(lengths) if self.padded else lengths, self.accumulation)


def cut_evenly(lengths: np.ndarray, pieces: int) -> list[tuple[int, int]]:
    """Cuts a sequence of items with these lengths ``[n]`` into pieces of near-equal length; returns ``[start, end)``.

    Each cut is between the two items nearest to a multiple of the mean, so that no piece is longer than the mean plus
    the longest item. If there are fewer items than pieces, the last pieces are empty.
    """
    n, num_filled = len(lengths), max(min(pieces, len(lengths)), 1)
    middles = np.cumsum(lengths) - lengths / 2  # an item is before a cut if its middle is
    index = np.arange(1, num_filled)
    cuts = np.searchsorted(middles, index * (lengths.sum() / num_filled))
    # Around an item longer than the mean, cuts coincide: they move apart until each piece has an item.
    cuts = np.maximum.accumulate(cuts - index) + index
    cuts = np.clip(cuts, index, n - num_filled + index)
    return list(pairwise([0, *cuts.tolist(), *[n] * (pieces - num_filled + 1)]))
