"""What a pair objective is, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .block import Block, Spans

POSITIVE, HARD, EASY = 0, 1, 2
KINDS = ("positive", "hard", "easy")


@dataclass(frozen=True)
class Pairs:
    """Five pairs for each of n anchors; every array is ``[n, 5]``.

    kind: POSITIVE, HARD (another paragraph of the same document) or EASY (another document).
    The label is 1 for a positive and 0 otherwise.
    """

    a: "Spans"
    b: "Spans"
    kind: np.ndarray


@dataclass(frozen=True)
class Objective:
    """A sentence-level pre-training objective: one pure function and what it needs to be called.

    name:       as in ``--objective``
    max_length: tokens of a pair, special tokens included, where the user gives no ``--max_length``
    num_words:  the random words that one anchor owns (a multiple of 4)
    usable:     sentences of each paragraph ``[P]`` -> which paragraphs can be anchors ``[P]``
    needs:      what a usable paragraph is, for error messages
    sample:     (block, anchors ``[n]``, words ``[n, num_words]``) -> Pairs; no randomness but the words
    """

    name: str
    max_length: int
    num_words: int
    usable: Callable[[np.ndarray], np.ndarray]
    needs: str
    sample: Callable[["Block", np.ndarray, np.ndarray], Pairs]
