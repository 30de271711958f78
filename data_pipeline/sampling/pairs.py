"""Defines a pair objective and the pairs that it returns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Shard

from .block import Block, Spans, UsableRule

POSITIVE, HARD, EASY = 0, 1, 2
KINDS = ("positive", "hard", "easy")
DI_LIELLO = (
    "Di Liello et al., 2022, *Pre-training Transformer Models with Sentence-Level Objectives for Answer Sentence "
    "Selection*"
)
PAIRS_PER_ANCHOR = 5  # of the paper's objectives: one positive and four negatives (Di Liello et al., 2022, A.1)


@dataclass(frozen=True)
class Pairs:
    """Holds the g pairs of each of n anchors (g: the objective's ``pairs_per_anchor``); every array is ``[n, g]``.

    texts: the texts of a pair in their order, A and then B; for a bi-encoder negatives may follow
    kind:  POSITIVE, HARD (a negative of the same document) or EASY (a negative of another document)

    The label is 1 for a positive and 0 otherwise.
    """

    texts: tuple[Spans, ...]
    kind: np.ndarray


def has_two_sentences(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Accepts the paragraphs that can be cut in two."""
    return num_sentences >= 2


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Defines a sentence-level pre-training objective: a pure function, and what it needs.

    name:       as in ``--objective``
    max_length: number of tokens of a pair, special tokens included, without ``--max_length``
    num_draws:  how many random 64-bit numbers one anchor owns (a multiple of 4)
    usable:     (sentences of each paragraph ``[P]``, paragraphs in its document ``[P]``) -> which paragraphs can be
                anchors ``[P]``. Negatives may come from any paragraph of a block
    needs:      what a usable paragraph is, for error messages. By default it has two sentences or more
    view:       how the objective sees a shard, such as documents of whole texts (see texts.py); None: as it is
    column:     the optional column of a corpus (see corpus.py) without which it finds nothing; "": none
    remedy:     how to prepare a corpus with that column, for error messages
    sample:     (block, anchors ``[n]``, random_bits ``[n, num_draws]`` uint64) -> Pairs. The anchors are indices of
                usable paragraphs of the block. All its randomness comes from ``random_bits``
    pairs_per_anchor: one positive, the rest negatives
    num_texts:  how many texts an example has: more than two if it has negatives beside the positive
    separate_texts: each text is encoded alone, and an anchor may make one example only, its positive
    asks, negatives, source: for model cards: what the label says of A and B, what the negatives are, and whose
                objective it is
    """

    name: str
    max_length: int
    num_draws: int
    sample: Callable[[Block, np.ndarray, np.ndarray], Pairs]
    usable: UsableRule = has_two_sentences
    needs: str = "a paragraph of at least two sentences"
    view: Callable[[Shard], Shard] | None = None
    column: str = ""
    remedy: str = ""
    pairs_per_anchor: int = PAIRS_PER_ANCHOR
    num_texts: int = 2
    separate_texts: bool = False
    asks: str = "whether A and B belong together"
    negatives: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name, is_valid, rule in (
            ("num_draws", self.num_draws > 0 and self.num_draws % 4 == 0, "a multiple of 4"),
            ("pairs_per_anchor", self.pairs_per_anchor >= 2 or self.separate_texts, "2 or more, one of them positive"),
            ("max_length", self.max_length > 0, "above 0"),
        ):
            if not is_valid:
                raise KinspanError(f"objective {self.name}: {name} is {getattr(self, name)}, it must be {rule}")

    def see(self, shard: Shard) -> Shard:
        """Returns the shard as the objective sees it."""
        return shard if self.view is None else self.view(shard)

    def check(self, pairs: Pairs, num_anchors: int) -> None:
        """Raises KinspanError for a wrong number of pairs, with which examples would depend on how a batch is cut."""
        shape = (num_anchors, self.pairs_per_anchor)
        if len(pairs.texts) != self.num_texts:
            raise KinspanError(f"objective {self.name}: {len(pairs.texts)} texts in an example, not {self.num_texts}")
        if pairs.kind.shape != shape or not ((pairs.kind == POSITIVE).sum(axis=1) == 1).all():
            raise KinspanError(f"objective {self.name}: pairs {pairs.kind.shape}, not {shape} with a positive a row")
