"""What a pair objective is, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_pipeline.errors import KinspanError

from .block import Block, UsableRule
from .spans import Spans

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

    a: Spans
    b: Spans
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
    asks, negatives, source: what the label says of A and B, what negatives are, and whose objective it is: for model
                cards

    Raises KinspanError where a number cannot be.
    """

    name: str
    max_length: int
    num_words: int
    usable: UsableRule
    needs: str
    sample: Callable[[Block, np.ndarray, np.ndarray], Pairs]
    pairs_per_anchor: int = PAIRS_PER_ANCHOR
    asks: str = "whether A and B belong together"
    negatives: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name, right, rule in (
            ("num_words", self.num_words > 0 and self.num_words % 4 == 0, "a multiple of 4"),
            ("pairs_per_anchor", self.pairs_per_anchor >= 2, "2 or more: one positive, and negatives"),
            ("max_length", self.max_length > 0, "above 0"),
        ):
            if not right:
                raise KinspanError(f"objective {self.name}: {name} is {getattr(self, name)}, it must be {rule}")

    def checked(self, pairs: Pairs, num_anchors: int) -> Pairs:
        """``pairs``, if they are what was promised: else an example would depend on how a batch is cut."""
        shape = (num_anchors, self.pairs_per_anchor)
        if pairs.kind.shape != shape or not ((pairs.kind == POSITIVE).sum(axis=1) == 1).all():
            raise KinspanError(
                f"objective {self.name} made pairs of shape {pairs.kind.shape} for {num_anchors} anchors; it must be "
                f"{shape}, with one positive in each row"
            )
        return pairs


def has_two_sentences(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Usable where a paragraph can be cut in two."""
    return num_sentences >= 2


TWO_SENTENCES = "a paragraph of at least two sentences"
