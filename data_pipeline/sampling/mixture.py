"""Several pair objectives in one order of examples: which of them, and which of its pairs, an index is.

The order goes in turns of L pairs, L being the least common multiple of the objectives' group sizes, dealt to the
objectives by a fixed pattern of as many turns as the weights add up to. Each objective's own pairs come in
their own order, as if it were alone. All of it is arithmetic on the index: nothing is drawn, shares are exact.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from .pairs import Objective


@dataclass(frozen=True)
class Mixture:
    """Objectives and their weights: shares of the pairs, as small whole numbers. Most often one objective.

    Example: with ssp:2 and sp:1 the pattern of turns is ssp, sp, ssp, and pairs 5 to 9 are sp's first five.
    """

    objectives: tuple[Objective, ...]
    weights: tuple[int, ...] = (1,)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.objectives)

    @property
    def max_length(self) -> int:
        """The shortest of the parts' own: the paper trains all three at SSP's 128 tokens (section 5.2)."""
        return min(o.max_length for o in self.objectives)

    @property
    def positive_share(self) -> float:
        """Share of positives among the pairs: one a group."""
        weighted = (w / o.pairs_per_anchor for o, w in zip(self.objectives, self.weights, strict=True))
        return sum(weighted) / sum(self.weights)

    @property
    def turn(self) -> int:
        """Pairs in one turn."""
        return math.lcm(*(o.pairs_per_anchor for o in self.objectives))

    def own_pairs(self, part: int, first: int, end: int) -> tuple[int, int]:
        """Which of the part's own pairs lie among the examples ``[first, end)``: a range of them."""
        return self._before(part, first), self._before(part, end)

    def index_of(self, part: int, own: np.ndarray) -> np.ndarray:
        """The example's number in the global order, for the part's own pair numbers."""
        turn, place = np.divmod(own, self.turn)
        cycle, number = np.divmod(turn, self.weights[part])
        return (cycle * sum(self.weights) + self._turns(part)[number]) * self.turn + place

    def _before(self, part: int, index: int) -> int:
        """How many of the part's pairs come before an example."""
        cycle, place = divmod(index, self.turn * sum(self.weights))
        inside = np.clip(place - self._turns(part) * self.turn, 0, self.turn)
        return cycle * self.weights[part] * self.turn + int(inside.sum())

    def _turns(self, part: int) -> np.ndarray:
        """The part's turns in the pattern, ascending."""
        return _turns(self.weights, part)


@cache
def _turns(weights: tuple[int, ...], part: int) -> np.ndarray:
    return np.flatnonzero(np.array(deal_turns(weights)) == part)


def deal_turns(weights: tuple[int, ...]) -> list[int]:
    """The parts' turns, spread as evenly as can be: each turn goes to the part that is furthest behind its share."""
    given = [0] * len(weights)
    pattern = []
    for turn in range(1, sum(weights) + 1):
        behind = [w * turn / sum(weights) - g for w, g in zip(weights, given, strict=True)]
        part = behind.index(max(behind))
        given[part] += 1
        pattern.append(part)
    return pattern
