"""Masked language modelling: which tokens are hidden, and what replaces them.

Devlin et al., 2019, section 3.1: 15% of the tokens are chosen; of these 80% become the mask token, 10% a
random token and 10% stay. Chosen afresh each time a pair is made (Liu et al., 2019, "dynamic masking").
Whole-word masking (an addition of BERT's authors, 2019) chooses words: all tokens of one are chosen, or none.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MaskedLM:
    """Masks tokens. One random 32-bit number per token decides if and how it is masked; whole words need two.

    continues: ``[vocab]`` which tokens continue a word: then whole words are chosen. None: single tokens are chosen
    draws_noise: whether the token loss draws replacements, and so needs one more number per masked token
    """

    mask_id: int
    vocab_size: int
    probability: float = 0.15
    continues: np.ndarray | None = None
    as_mask: float = 0.8
    as_random: float = 0.1
    draws_noise: bool = False

    @property
    def numbers_per_token(self) -> int:
        """Returns how many random 32-bit numbers a token owns."""
        return 1 if self.continues is None else 2

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, random_bits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks ``ids`` in place; returns the chosen positions, ascending, and the original ids there, both ``[M]``.

        ids:         ``[T]`` the packed tokens of n pairs
        starts:      ``[n + 1]`` where each pair begins
        special:     ``[T]`` true at special tokens, which are never chosen
        random_bits: ``[n, D]`` uint64, two 32-bit numbers in each, enough for the tokens of the longest pair
        """
        numbers = random_bits.view(np.uint32)
        threshold = int(self.probability * 2**32)
        if self.continues is None:
            positions, number = self._choose_tokens(starts, special, numbers, threshold)
        else:
            positions, number = self._choose_words(ids, starts, special, numbers, threshold)
        labels = ids[positions]
        # Below the threshold, numbers are uniform, so the interval is divided again: 80% mask, 10% random, 10% kept.
        mask_below, random_below = int(self.as_mask * threshold), int((self.as_mask + self.as_random) * threshold)
        is_random = (number >= mask_below) & (number < random_below)
        width = np.uint64(max(random_below - mask_below, 1))
        drawn = (number - np.uint64(mask_below)) * np.uint64(self.vocab_size) // width
        new = np.where(number < mask_below, self.mask_id, np.where(is_random, drawn, labels))
        ids[positions] = new
        return positions, labels

    @staticmethod
    def _choose_tokens(
        starts: np.ndarray, special: np.ndarray, numbers: np.ndarray, threshold: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the chosen positions, each by its own number, and those numbers, uniform below ``threshold``."""
        is_token = np.arange(numbers.shape[1], dtype=np.int32) < np.diff(starts)[:, None]
        number = numbers[is_token]  # [T]
        positions = np.flatnonzero((number < np.uint32(threshold)) & ~special)
        return positions, number[positions].astype(np.uint64)

    def _choose_words(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, numbers: np.ndarray, threshold: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``_choose_tokens``, but whole words by their first token's number, with a second number for each token."""
        assert self.continues is not None
        pair = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        offset = np.arange(len(ids)) - starts[pair]
        after_special = np.concatenate([[True], special[:-1]])
        begins = special | after_special | ~self.continues[ids]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(ids)), 0))  # the first token of each token's word
        positions = np.flatnonzero((numbers[pair[first], offset[first]] < np.uint32(threshold)) & ~special)
        second = numbers[pair[positions], numbers.shape[1] // 2 + offset[positions]].astype(np.uint64)
        return positions, (second * np.uint64(threshold)) >> np.uint64(32)
