"""Mixes parts in one order of examples: maps an index to a part and one of its own pairs. A part is an objective and
the corpus that it reads.

The order consists of turns, each of one part. A turn is L pairs, where L is the least common multiple of the
objectives' pairs per anchor, so that a batch has pairs of all parts; in round robin, it is a whole batch. A fixed
pattern assigns turns to parts, and repeats after as many turns as the weights add up to. The pairs of a part keep their
order, as if it were alone. All of it is arithmetic on the index: nothing is drawn, and shares are exact.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus

from .pairs import Objective


@dataclass(frozen=True)
class MixturePart:
    """Gives pairs of one objective from one corpus.

    weight: the part's share of the pairs, as a small whole number; 0: it keeps its index, and gives no pairs
    corpus: None until ``Mixture.read_from`` sets it
    source: the index of that corpus among the mixture's corpora
    name:   the part's name in metrics; "": the objective's name, where there is one corpus
    """

    objective: Objective
    weight: int = 1
    corpus: Corpus | None = None
    source: int = 0
    name: str = ""

    @property
    def key(self) -> str:
        """Returns the key of the part's random numbers: objective and corpus, so that two corpora do not draw alike."""
        assert self.corpus is not None, "Mixture.read_from says which corpus a part reads"
        return f"{self.objective.name}/{self.corpus.manifest.fingerprint}"


@dataclass(frozen=True)
class Mixture:
    """Gives pairs of its parts, in turns. Most often there is one part.

    batch: pairs of a turn in round robin, where each batch is of one part; 0: batches have pairs of all parts

    Example: with the weights ssp:2 and sp:1 the pattern of turns is ssp, sp, ssp, and pairs 5 to 9 are the first five
    of sp.
    """

    parts: tuple[MixturePart, ...]
    batch: int = 0

    def read_from(self, *corpora: Corpus) -> "Mixture":
        """Returns this mixture with each part reading its corpus.

        Raises KinspanError if two of the corpora are copies of one, and an objective reads both: each pair would be
        learned twice.
        """
        source_of: dict[tuple[str, str], int] = {}
        for part in self.parts:
            key = (corpora[part.source].manifest.fingerprint, part.objective.name)
            if (source := source_of.setdefault(key, part.source)) != part.source:
                names = f"{corpora[source].name} and {corpora[part.source].name}"
                raise KinspanError(f"--corpus: {names} hold the same corpus, for {part.objective.name} twice")
        return replace(self, parts=tuple(replace(part, corpus=corpora[part.source]) for part in self.parts))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return tuple(part.objective for part in self.parts)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        return tuple(part.weight for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the parts' names in metrics."""
        return tuple(part.name or part.objective.name for part in self.parts)

    @property
    def max_length(self) -> int:
        """Returns the parts' lowest ``max_length``: the paper trains all three at SSP's 128 tokens (section 5.2)."""
        return min(part.objective.max_length for part in self.parts)

    @property
    def positive_share(self) -> float:
        """Returns the share of positives among the pairs. Each anchor has one positive."""
        return sum(part.weight / part.objective.pairs_per_anchor for part in self.parts) / sum(self.weights)

    @cached_property
    def turn(self) -> int:
        """Returns the number of pairs in a turn."""
        return self.batch or math.lcm(*(part.objective.pairs_per_anchor for part in self.parts))

    def own_pairs(self, part: int, first: int, end: int) -> tuple[int, int]:
        """Returns the range of the part's own pairs that are among the examples ``[first, end)``."""
        return self._count_before(part, first), self._count_before(part, end)

    def index_of(self, part: int, pairs: np.ndarray) -> np.ndarray:
        """Returns the index in the global order of each of the part's own pairs."""
        turn, offset = np.divmod(pairs, self.turn)
        cycle, number = np.divmod(turn, self.weights[part])
        return (cycle * sum(self.weights) + _find_turns(self.weights, part)[number]) * self.turn + offset

    def _count_before(self, part: int, index: int) -> int:
        cycle, offset = divmod(index, self.turn * sum(self.weights))
        inside = np.clip(offset - _find_turns(self.weights, part) * self.turn, 0, self.turn)
        return cycle * self.weights[part] * self.turn + int(inside.sum())


@cache
def _find_turns(weights: tuple[int, ...], part: int) -> np.ndarray:
    return np.flatnonzero(np.array(deal_turns(weights)) == part)


@cache
def deal_turns(weights: tuple[int, ...]) -> list[int]:
    """Returns the part of each turn, evenly spread: each turn goes to the part that is furthest behind its share."""
    total, num_turns = sum(weights), [0] * len(weights)
    pattern = []
    for turn in range(1, total + 1):
        behind = [w * turn / total - g for w, g in zip(weights, num_turns, strict=True)]
        part = behind.index(max(behind))
        num_turns[part] += 1
        pattern.append(part)
    return pattern
