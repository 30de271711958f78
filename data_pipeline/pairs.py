"""What a pair objective is, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .block import Block, Spans

POSITIVE, HARD, EASY = 0, 1, 2
KINDS = ("positive", "hard", "easy")
DI_LIELLO = (
    "Di Liello et al., 2022, *Pre-training Transformer Models with Sentence-Level Objectives for Answer Sentence "
    "Selection*"
)
PAIRS_PER_ANCHOR = 5  # of the paper's objectives: one positive and four negatives (Di Liello et al., 2022, A.1)


@dataclass(frozen=True)
class Pairs:
    """The g pairs of each of n anchors (g: the objective's ``pairs_per_anchor``); every array is ``[n, g]``.

    kind: POSITIVE, HARD (a negative of the same document) or EASY (a negative of another document).
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
    usable:     (sentences of each paragraph ``[P]``, paragraphs in its document ``[P]``) -> which paragraphs can be
                anchors ``[P]``. Negatives, too, come from these paragraphs alone
    needs:      what a usable paragraph is, for error messages
    sample:     (block, anchors ``[n]``, words ``[n, num_words]``) -> Pairs; no randomness but the words
    pairs_per_anchor: one positive, the rest negatives
    asks, source: what the label says of A and B, and whose objective it is: for model cards
    """

    name: str
    max_length: int
    num_words: int
    usable: Callable[[np.ndarray, np.ndarray], np.ndarray]
    needs: str
    sample: Callable[["Block", np.ndarray, np.ndarray], Pairs]
    pairs_per_anchor: int = PAIRS_PER_ANCHOR
    asks: str = "whether A and B belong together"
    source: str = ""


def two_sentences(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Usable where a paragraph can be cut in two."""
    return num_sentences >= 2


TWO_SENTENCES = "a paragraph of at least two sentences"
