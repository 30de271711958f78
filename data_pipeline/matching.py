"""Finds known sentences in running text by hashes of their n-grams of words.

Both sides are compared in lower case (Unicode NFKC) without punctuation, so that it does not matter how either was
tokenised ("5,000" or "5 , 000"). A sentence of fewer than NGRAM words is not judged: "He was born in London." occurs
without having leaked.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

NGRAM = 8  # words
LEAST_LETTERS = 16  # of a sentence that is judged
THRESHOLD = 0.7  # share of n-grams from which on a sentence counts as known (Chowdhery et al., 2022, "PaLM", section 8)

# Thai, Lao, Burmese, Khmer, Japanese and Chinese put no spaces between words: there each character counts as one.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc-\u30fe\u3400-\u4dbf\u4e00-\u9fff"
)
# Accents that stand alone, Hebrew and Arabic points, and the scripts of India without their full stops: ``\w`` leaves
# out marks, and would cut a word of Hindi at each vowel sign.
MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u0900-\u0963\u0966-\u0dff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_RUN_OR_WORD = re.compile(rf"([{_UNSPACED}]+)|[^\W{_UNSPACED}]+(?:[{MARKS}]+[^\W{_UNSPACED}]*)*")
_WORD_OR_END = re.compile(rf"[^\W_{_UNSPACED}]+(?:[{MARKS}]+[^\W_{_UNSPACED}]*)*|[{_UNSPACED}]|\n")
_BRACKETS = re.compile(r"-[LR][RCS]B-")  # the Penn Treebank's ( ) { } [ ]
_END = 1  # among the numbers of words, the end of a paragraph; 0 is any word that no sentence has

# The hash of a window is the sum of its parts' hashes, each times an odd number of 64 bits, modulo 2^64.
_MULTIPLIERS = np.random.default_rng(13).integers(2**62, 2**63, NGRAM, dtype=np.uint64) | np.uint64(1)


def split_words(text: str) -> list[str]:
    """Splits into runs of letters and digits in lower case, characters of scripts without spaces, and line ends."""
    return _WORD_OR_END.findall(unicodedata.normalize("NFKC", text).lower())


def space_out(text: str) -> str:
    """Puts spaces around each character of a script that has none between words."""
    return text if text.isascii() else _UNSPACED_CHARACTER.sub(r" \g<0> ", text)


def pair_up(text: str) -> str:
    """Writes neighbouring characters of such scripts as overlapping pairs, which BM25 then compares like words."""
    if text.isascii() or not _UNSPACED_CHARACTER.search(text):
        return text
    return " ".join(text[start:end] for start, end in locate_words(text))


def locate_words(text: str) -> Iterator[tuple[int, int]]:
    """Finds where words begin and end, and in scripts without spaces where pairs of characters do."""
    for match in _RUN_OR_WORD.finditer(text):
        start, end = match.span()
        if match[1] and end - start > 2:
            yield from ((first, first + 2) for first in range(start, end - 1))
        else:
            yield start, end


def undo_treebank(text: str) -> str:
    """Undoes what the Penn Treebank's tokenisation, in which some benchmarks come, does to brackets and to "n't"."""
    return _BRACKETS.sub(" ", text).replace(" n't", "n't")


class Known:
    """Holds hashes to look for among many others, most of which a table of first bits rules out."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted = np.unique(hashes)
        bits = max(16, len(self.sorted).bit_length() + 4)
        self.shift = np.uint64(64 - bits)
        self.table = np.zeros(2**bits, dtype=bool)
        self.table[self.sorted >> self.shift] = True

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places where ``hashes`` holds known ones, and the number of the known one at each place."""
        at = np.flatnonzero(self.table[hashes >> self.shift])
        which = np.searchsorted(self.sorted, hashes[at])
        same = self.sorted[np.minimum(which, len(self.sorted) - 1)] == hashes[at]
        return at[same], which[same]


@dataclass(frozen=True)
class Sentences:
    """Holds N sentences to look for, by their M n-grams of words.

    judged:  ``[N]`` bool, whether the sentence is long enough to be looked for
    numbers: for each of their words, a random number of 64 bits
    grams:   hashes of their distinct n-grams
    gram_of: ``[M]`` the number of each n-gram in ``grams``
    row_of:  ``[M]`` ascending, the sentence that the n-gram is from
    """

    judged: np.ndarray
    numbers: dict[str, int]
    grams: Known
    gram_of: np.ndarray
    row_of: np.ndarray

    def find_grams(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of each n-gram that occurs, and the paragraph of ``words`` in which it does."""
        numbers = _number_words(words, self.numbers)
        at, which = self.grams.find(_hash_words(numbers))
        return which, np.searchsorted(np.flatnonzero(numbers == _END), at)


def make_sentences(sentences: Sequence[list[str]]) -> Sentences:
    """Prepares sentences, each a list of words as ``split_words`` returns them, to be looked for."""
    judged = np.array([len(words) >= NGRAM and len("".join(words)) >= LEAST_LETTERS for words in sentences], dtype=bool)
    kept = [words for words, keep in zip(sentences, judged, strict=True) if keep]
    vocabulary = sorted({word for words in kept for word in words})
    drawn = np.random.default_rng(8).integers(2, 2**63, len(vocabulary))
    numbers = dict(zip(vocabulary, drawn.tolist(), strict=True)) | {"\n": _END}
    hashes = [_hash_words(_number_words(words, numbers)) for words in kept]
    rows = np.repeat(np.flatnonzero(judged), [len(h) for h in hashes])
    flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
    grams = Known(flat)
    return Sentences(judged, numbers, grams, np.searchsorted(grams.sorted, flat), rows)


def _number_words(words: list[str], numbers: dict[str, int]) -> np.ndarray:
    return np.fromiter(map(numbers.get, words, repeat(0)), dtype=np.uint64, count=len(words))


def _hash_words(numbers: np.ndarray) -> np.ndarray:
    """Returns a hash of the numbers of each window of NGRAM words."""
    windows = max(0, len(numbers) - NGRAM + 1)
    hashes = np.zeros(windows, dtype=np.uint64)
    for k in range(NGRAM):
        hashes += numbers[k : k + windows] * _MULTIPLIERS[k]
    return hashes
