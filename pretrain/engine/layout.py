"""How a global batch is dealt to ranks and cut into micro-batches."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Deals global batches of ``size`` pairs to ``world`` ranks, in shares that need not be equal.

    All ranks take the same number of micro-steps, because DeepSpeed's collectives must match; a rank that has no pairs
    left contributes zero.

    micro:  the most pairs of a micro-batch; on average, where micro-batches are cut to equal tokens
    padded: the model pads each micro-batch to its longest pair, so that its work goes by pairs and not by tokens
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
        """Returns the most pairs of a micro-batch, where all have as many."""
        return math.ceil(math.ceil(self.size / self.world) / self.accumulation)

    @property
    def full_pairs(self) -> int:
        """Returns how many pairs at full length have at least the tokens of any micro-batch of ``deal`` and ``cut``."""
        if self.world > 1 and not self.padded and self.size > self.world:
            share = self.size / self.world + 1
            return min(self.size, math.ceil(share if self.accumulation == 1 else share / self.accumulation + 1))
        exact = self.padded or self.accumulation == 1 or self.largest == 1
        return self.largest if exact else self.largest + 1

    def share(self, rank: int, count: int | None = None) -> tuple[int, int]:
        """Returns the rank's examples within a global batch of ``count`` (else ``size``) examples: ``[start, end)``."""
        count = self.size if count is None else count
        return rank * count // self.world, (rank + 1) * count // self.world

    def deal(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns the ranks' shares as ``[start, end)``: of near-equal tokens, or pairs if the model pads."""
        if self.padded:
            return [self.share(rank) for rank in range(self.world)]
        return cut_evenly(lengths, self.world)

    def micro_batches(self, rank: int, count: int | None = None) -> list[tuple[int, int]]:
        """Returns the rank's micro-batches as ``[start, end)`` within a global batch; some may be empty."""
        start, end = self.share(rank, count)
        cuts = [start + (end - start) * k // self.accumulation for k in range(self.accumulation + 1)]
        return list(pairwise(cuts))

    def cut(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns a share's micro-batches as ``[start, end)``: of near-equal tokens, or pairs if the model pads."""
        return cut_evenly(np.ones_like(lengths) if self.padded else lengths, self.accumulation)


def cut_evenly(lengths: np.ndarray, pieces: int) -> list[tuple[int, int]]:
    """Cuts a row of things ``[n]`` into pieces of near-equal length, as ``[start, end)``.

    Each cut is the one nearest to where an exact one would be: no piece is longer than the mean and the longest thing
    together. The last pieces are empty where there are fewer things than pieces.
    """
    n, filled = len(lengths), max(min(pieces, len(lengths)), 1)
    middles = np.cumsum(lengths) - lengths / 2  # a thing lies before a cut if its middle does
    number = np.arange(1, filled)
    cuts = np.searchsorted(middles, number * (lengths.sum() / filled))
    # Around a thing longer than the mean, cuts meet: they move apart until each piece has a thing.
    cuts = np.maximum.accumulate(cuts - number) + number
    cuts = np.clip(cuts, number, n - filled + number)
    return list(pairwise([0, *cuts.tolist(), *[n] * (pieces - filled + 1)]))
