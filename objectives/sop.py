"""Sentence Order Prediction (SOP): do A and B stand in this order?

Lan et al., 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations", section 3.1. A
positive is two consecutive spans of one paragraph, the negative the same two swapped, one of each an anchor. Both spans
are of 1-4 sentences, drawn alike: otherwise the longer one would tell the order.
"""

import numpy as np

from data_pipeline.block import Block, Spans
from data_pipeline.pairs import HARD, POSITIVE, TWO_SENTENCES, Objective, Pairs, two_sentences
from data_pipeline.random_words import bounded

MAX_SPAN = 4  # sentences


def sample(block: Block, anchors: np.ndarray, words: np.ndarray) -> Pairs:
    """Two pairs an anchor: in order, and swapped (a hard negative). words: ``[n, 4]``"""
    sentences = block.num_sentences[anchors].astype(np.int64)
    total = np.minimum(2 + bounded(words[:, 0], 2 * MAX_SPAN - 1), sentences)
    least = np.maximum(total - MAX_SPAN, 1)
    first = least + bounded(words[:, 1], np.minimum(total - 1, MAX_SPAN) - least + 1)
    start = bounded(words[:, 2], sentences - total + 1)
    a, b = (start, start + first), (start + first, start + total)
    paragraphs = np.column_stack([anchors, anchors])
    left = Spans(paragraphs, *(np.column_stack([x, y]) for x, y in zip(a, b, strict=True)))
    right = Spans(paragraphs, *(np.column_stack([y, x]) for x, y in zip(a, b, strict=True)))
    return Pairs(left, right, np.tile(np.array([POSITIVE, HARD], dtype=np.int8), (len(anchors), 1)))


SOP = Objective(
    "sop",
    128,
    4,
    two_sentences,
    TWO_SENTENCES,
    sample,
    pairs_per_anchor=2,
    asks="whether A stands before B",
    source="Lan et al., 2020, *ALBERT: A Lite BERT for Self-supervised Learning of Language Representations*",
)
