"""Makes two pairs of each question, with its own text and with another question's, as all objectives of forums do.

Rücklé et al., 2020, "MultiCQA: Zero-Shot Transfer of Self-Supervised Text Matching Models on a Massive Scale",
section 3.1 (WS-TB): a negative is the text of a random other question of the whole forum. So negatives are as long as
positives by construction, whatever the question.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_pipeline.corpus import Shard
from data_pipeline.sampling.block import Block, Spans
from data_pipeline.sampling.pairs import Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below
from data_pipeline.sampling.texts import Texts, find_block_groups, find_texts, view_texts

from .negatives import MAX_WALKED, TRIES, assemble, find_equal_texts

RUECKLE = (
    "Rücklé et al., 2020, *MultiCQA: Zero-Shot Transfer of Self-Supervised Text Matching Models on a Massive Scale*"
)
MAX_LENGTH = 300  # tokens of a pair (Rücklé et al., 2020, A.1)
NO_OTHER_TEXT = (
    "every question that this objective can use goes with one and the same text, or is a duplicate of the others, so "
    "that there are no negatives: choose another objective, or prepare more questions"
)
NUM_DRAWS = -(-TRIES // 4) * 4  # of a question: one for each try of the negative


def usable(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Accepts all questions, since a view has the usable ones alone."""
    return num_sentences > 0


def view_nothing(shard: Shard) -> Shard:
    """Returns the shard without any question that can be used, as where its reader gave none."""
    return view_texts(shard, np.zeros(0, dtype=np.int64), [])


def view_questions(shard: Shard, *texts: Texts) -> Shard:
    """Returns the questions of a shard of which all of these texts are there."""
    filled = np.stack([text.lengths > 0 for text in texts]).all(axis=0)
    return view_texts(shard, np.flatnonzero(filled), list(texts))


QUESTIONS = partial(  # an objective of theirs
    Objective, max_length=MAX_LENGTH, num_draws=NUM_DRAWS, usable=usable, pairs_per_anchor=2, source=RUECKLE
)


@dataclass(frozen=True)
class _Others:
    """Draws other questions than the anchor, each alike. ``count``: the questions of the block;  hard
    ``[n, 1]``: none"""

    anchors: np.ndarray
    count: int
    hard: np.ndarray

    def draw(self, random_bits: np.ndarray) -> np.ndarray:
        """Draws a question for each anchor, ``[n, 1]``; random_bits: ``[n]``"""
        drawn = draw_below(random_bits, np.full_like(self.anchors, self.count - 1))
        return (drawn + (drawn >= self.anchors))[:, None]

    def walk_outside(self, row: int) -> Iterator[int]:
        """Yields the questions behind the anchor."""
        for step in range(1, min(MAX_WALKED, self.count)):
            yield int((self.anchors[row] + step) % self.count)


def sample_questions(
    block: Block,
    anchors: np.ndarray,
    random_bits: np.ndarray,
    a: tuple[int, ...],
    b: tuple[int, ...],
    skip_duplicates: bool = False,
) -> Pairs:
    """Returns the two pairs of each question: with the text that goes with it, and with that of another question.

    anchors: ``[n]`` questions of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    a, b: numbers of the texts of the view that make A and B: one, or two in a row
    skip_duplicates: no negative is the text of a question that links of duplicates connect with the anchor
    """
    anchors = anchors.astype(np.int64)
    positive = find_texts(anchors, *b)
    pool = _Others(anchors, len(block.paragraph), np.zeros((len(anchors), 1), dtype=bool))

    def draw(attempt: int) -> Spans:
        return find_texts(pool.draw(random_bits[:, attempt]), *b)

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        wrong = find_equal_texts(block, positive[rows], texts)
        if not skip_duplicates:
            return wrong
        asked, drawn, groups = anchors[rows], texts.paragraph, block.make_once(find_block_groups)
        return wrong | ((groups[asked] == groups[drawn]) & (block.shard_number[asked] == block.shard_number[drawn]))

    def cut(row: int, paragraph: int) -> Spans:
        return find_texts(np.array([paragraph]), *b)

    return assemble(block, find_texts(anchors, *a), positive, pool, draw, rejects, cut, NO_OTHER_TEXT)
