"""Makes two pairs of each question, with its own text and with another question's, for all forum objectives.

Rücklé et al., 2020, "MultiCQA: Zero-Shot Transfer of Self-Supervised Text Matching Models on a Massive Scale",
section 3.1 (WS-TB): a negative is the text of a random other question of the whole forum. So negatives are as long as
positives by construction, whatever the question.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from data_pipeline.corpus import Shard
from data_pipeline.sampling.block import Block, Spans, has_text
from data_pipeline.sampling.pairs import Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below
from data_pipeline.sampling.texts import TextColumn, find_block_groups, make_spans, view_texts

from .negatives import MAX_WALKED, TRIES, assemble, find_equal_texts

RUECKLE = (
    "Rücklé et al., 2020, *MultiCQA: Zero-Shot Transfer of Self-Supervised Text Matching Models on a Massive Scale*"
)
MAX_LENGTH = 300  # tokens of a pair (Rücklé et al., 2020, A.1)
NO_OTHER_TEXT = (
    "every question that this objective can use has the same title or text, or is a duplicate of the "
    "others, so that there are no negatives: choose another objective, or prepare more questions"
)
NUM_DRAWS = -(-TRIES // 4) * 4  # per question: one for each try of the negative


def view_questions(shard: Shard, *texts: TextColumn) -> Shard:
    """Returns a view of the questions that have all of these texts."""
    return view_texts(shard, np.flatnonzero(np.stack([text.lengths > 0 for text in texts]).all(axis=0)), list(texts))


make_forum_objective = partial(
    Objective, max_length=MAX_LENGTH, num_draws=NUM_DRAWS, usable=has_text, pairs_per_anchor=2, source=RUECKLE
)


def sample_questions(
    block: Block,
    anchors: np.ndarray,
    random_bits: np.ndarray,
    a: tuple[int, ...],
    b: tuple[int, ...],
    skip_duplicates: bool = False,
) -> Pairs:
    """Returns the two pairs of each question: with its own text, and with that of another question.

    anchors: ``[n]`` questions of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    a, b: indices of the view's texts that make A and B: one, or two consecutive ones
    skip_duplicates: questions that links connect with the anchor are no negatives
    """
    anchors = anchors.astype(np.int64)
    positive = make_spans(anchors, *b)
    count, hard = len(block.paragraph), np.zeros((len(anchors), 1), dtype=bool)

    def draw(attempt: int) -> Spans:
        drawn = draw_below(random_bits[:, attempt], np.full_like(anchors, count - 1))
        return make_spans((drawn + (drawn >= anchors))[:, None], *b)

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        wrong = find_equal_texts(block, positive[rows], texts)
        wrong |= find_equal_texts(block, make_spans(anchors[rows], *a), make_spans(texts.paragraph, *a))
        if not skip_duplicates:
            return wrong
        own, other, groups = anchors[rows], texts.paragraph, block.make_once(find_block_groups)
        return wrong | ((groups[own] == groups[other]) & (block.shard_number[own] == block.shard_number[other]))

    def cut(row: int, paragraph: int) -> Spans:
        return make_spans(np.array([paragraph]), *b)

    def walk_outside(row: int) -> Iterator[int]:  # the questions after the anchor
        return (int((anchors[row] + step) % count) for step in range(1, min(MAX_WALKED, count)))

    return assemble(block, make_spans(anchors, *a), positive, hard, draw, rejects, cut, walk_outside, NO_OTHER_TEXT)
