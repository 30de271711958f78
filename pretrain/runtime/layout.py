"""How a global batch is dealt to ranks and cut into micro-batches."""

import math
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Layout:
    """How global batches of ``size`` pairs are dealt to ``world`` ranks.

    The shares need not be equal, so that any number of ranks can train on any global batch. All ranks take the same
    number of micro-steps, because DeepSpeed's collectives must match; a rank that has no pairs left contributes zero.

    micro: the most pairs that a micro-batch may have
    """

    size: int
    micro: int
    world: int

    @property
    def accumulation(self) -> int:
        """The number of micro-steps of every rank, which the largest share determines."""
        largest_share = math.ceil(self.size / self.world)
        return math.ceil(largest_share / self.micro)

    @property
    def largest(self) -> int:
        """The most pairs that a micro-batch really has."""
        return math.ceil(math.ceil(self.size / self.world) / self.accumulation)

    def share(self, rank: int, count: int | None = None) -> tuple[int, int]:
        """The rank's examples within a global batch of ``count`` (else ``size``) examples: ``[start, end)``."""
        count = self.size if count is None else count
        return rank * count // self.world, (rank + 1) * count // self.world

    def micro_batches(self, rank: int, count: int | None = None) -> list[tuple[int, int]]:
        """The rank's micro-batches as ``[start, end)`` within a global batch, as even as can be; some may be empty.

        count: examples of this batch, where it is the short last one of an epoch; it is cut into as many micro-batches
        as a full one
        """
        start, end = self.share(rank, count)
        cuts = [start + (end - start) * k // self.accumulation for k in range(self.accumulation + 1)]
        return list(pairwise(cuts))
