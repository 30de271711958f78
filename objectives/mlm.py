"""Masked language modelling: which tokens are hidden, and as what.

Devlin et al., 2019, section 3.1: 15% of the tokens are chosen; of these 80% become the mask token, 10% a
random token and 10% stay. Chosen afresh each time a pair is made (Liu et al., 2019, "dynamic masking").
"""

from dataclasses import dataclass

import numpy as np

PROBABILITY = 0.15
AS_MASK, AS_RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class MaskedLM:
    """How tokens are masked. One 32-bit random number a token decides all of it."""

    mask_id: int
    vocab_size: int
    probability: float = PROBABILITY

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask ``ids`` in place.

        ids:     ``[T]`` the packed tokens of n pairs
        starts:  ``[n + 1]`` where each pair begins
        special: ``[T]`` true at special tokens, which are never chosen
        words:   ``[n, W]`` uint64, two tokens' numbers in each word, 2 W at least the longest pair

        Returns the chosen positions in ``ids``, ascending, and the ids that stood there, both ``[M]``.
        """
        numbers = words.view(np.uint32)
        chosen = int(self.probability * 2**32)
        pair, place = np.divmod(np.flatnonzero(numbers < np.uint32(chosen)), numbers.shape[1])
        inside = place < np.diff(starts)[pair]
        pair, place = pair[inside], place[inside]
        positions = starts[pair] + place
        keep = ~special[positions]
        positions, number = positions[keep], numbers[pair[keep], place[keep]].astype(np.uint64)
        labels = ids[positions]
        # Below the threshold the number is uniform, so it can be cut again: 80% mask, 10% random, 10% kept.
        mask_below, random_below = int(AS_MASK * chosen), int((AS_MASK + AS_RANDOM) * chosen)
        as_random = (number >= mask_below) & (number < random_below)
        drawn = (number - np.uint64(mask_below)) * np.uint64(self.vocab_size) // np.uint64(random_below - mask_below)
        new = np.where(number < mask_below, self.mask_id, np.where(as_random, drawn, labels))
        ids[positions] = new
        return positions, labels


@dataclass(frozen=True)
class ReplacedTokens:
    """The chosen tokens all become the mask token: what ELECTRA's generator fills in."""

    mask_id: int
    vocab_size: int
    probability: float = PROBABILITY
    noise = True

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        positions, labels = MaskedLM(self.mask_id, self.vocab_size, self.probability).apply(ids, starts, special, words)
        ids[positions] = self.mask_id
        return positions, labels
