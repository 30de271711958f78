"""Masked language modelling: which tokens are hidden, and as what.

Devlin et al., 2019, section 3.1: 15% of the tokens are chosen; of these 80% become the mask token, 10% a
random token and 10% stay. Chosen afresh each time a pair is made (Liu et al., 2019, "dynamic masking").
Whole-word masking (an addition of BERT's authors, 2019) chooses words: all tokens of one are chosen, or none.
"""

from dataclasses import dataclass

import numpy as np

PROBABILITY = 0.15
AS_MASK, AS_RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class MaskedLM:
    """How tokens are masked. One random 32-bit number per token decides all of it; with whole words, two do.

    continues: ``[vocab]`` which tokens go on with the word before them: then whole words are chosen. None: tokens are
    noise:     whether the token loss draws replacements, and so needs one more number per masked token
    """

    mask_id: int
    vocab_size: int
    probability: float = PROBABILITY
    continues: np.ndarray | None = None
    as_mask: float = AS_MASK
    as_random: float = AS_RANDOM
    noise: bool = False

    @property
    def numbers_per_token(self) -> int:
        """Random 32-bit numbers that a token owns."""
        return 1 if self.continues is None else 2

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, random_bits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks ``ids`` in place, and returns the chosen positions, ascending, and the ids that stood there, both
        ``[M]``.

        ids:         ``[T]`` the packed tokens of n pairs
        starts:      ``[n + 1]`` where each pair begins
        special:     ``[T]`` true at special tokens, which are never chosen
        random_bits: ``[n, D]`` uint64, two 32-bit numbers in each, enough for the tokens of the longest pair
        """
        numbers = random_bits.view(np.uint32)
        chosen = int(self.probability * 2**32)
        if self.continues is None:
            positions, number = self._tokens(starts, special, numbers, chosen)
        else:
            positions, number = self._whole_words(ids, starts, special, numbers, chosen)
        labels = ids[positions]
        # Below the threshold the number is uniform, so it can be cut again: 80% mask, 10% random, 10% kept.
        mask_below, random_below = int(self.as_mask * chosen), int((self.as_mask + self.as_random) * chosen)
        as_random = (number >= mask_below) & (number < random_below)
        width = np.uint64(max(random_below - mask_below, 1))
        drawn = (number - np.uint64(mask_below)) * np.uint64(self.vocab_size) // width
        new = np.where(number < mask_below, self.mask_id, np.where(as_random, drawn, labels))
        ids[positions] = new
        return positions, labels

    @staticmethod
    def _tokens(
        starts: np.ndarray, special: np.ndarray, numbers: np.ndarray, chosen: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chosen positions, each by its own number, and those numbers, uniform below ``chosen``."""
        is_part = np.arange(numbers.shape[1], dtype=np.int32) < np.diff(starts)[:, None]
        number = numbers[is_part]  # [T]
        positions = np.flatnonzero((number < np.uint32(chosen)) & ~special)
        return positions, number[positions].astype(np.uint64)

    def _whole_words(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, numbers: np.ndarray, chosen: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``_tokens``, but a word is chosen by its first token's number, and each of its tokens has a second one."""
        assert self.continues is not None
        pair = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        place = np.arange(len(ids)) - starts[pair]
        after_special = np.concatenate([[True], special[:-1]])
        begins = special | after_special | ~self.continues[ids]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(ids)), 0))  # the first token of each one's word
        positions = np.flatnonzero((numbers[pair[first], place[first]] < np.uint32(chosen)) & ~special)
        second = numbers[pair[positions], numbers.shape[1] // 2 + place[positions]].astype(np.uint64)
        return positions, (second * np.uint64(chosen)) >> np.uint64(32)
