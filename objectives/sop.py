"""Sentence Order Prediction (SOP): does A come before B?

Lan et al., 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations", section 3.1. An
anchor is a paragraph of at least two sentences, and makes two pairs:

- the positive's A and B are two consecutive spans of 1-4 sentences each;
- the hard negative is the same two spans, swapped. There are no easy ones.

The counts of both spans are drawn alike: otherwise the longer one would tell the order.
"""

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.block import Block, Spans, join_columns
from data_pipeline.sampling.pairs import HARD, POSITIVE, Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below

from .negatives import MAX_WALKED, find_equal_texts, list_spans

MAX_SPAN = 4  # sentences
TRIES, PER_TRY = 4, 3
NUM_DRAWS = TRIES * PER_TRY


def sample(block: Block, anchors: np.ndarray, random_bits: np.ndarray) -> Pairs:
    """Returns the two pairs of each anchor: in order, and swapped. Equal texts, which have no order, are drawn again.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    first, second = _draw_consecutive(block, anchors, random_bits)
    equal = np.flatnonzero(find_equal_texts(block, first, second))
    for attempt in range(1, TRIES):
        redrawn = _draw_consecutive(block, anchors[equal], random_bits[equal, attempt * PER_TRY :])
        first.put(equal, redrawn[0])
        second.put(equal, redrawn[1])
        equal = equal[find_equal_texts(block, first[equal], second[equal])]
    for row in equal.tolist():
        ordered = _search(block, int(anchors[row]))
        first.put(row, ordered[0])
        second.put(row, ordered[1])
    a, b = join_columns(first, second), join_columns(second, first)
    return Pairs((a, b), np.tile(np.array([POSITIVE, HARD], dtype=np.int8), (len(anchors), 1)))


def _draw_consecutive(block: Block, anchors: np.ndarray, random_bits: np.ndarray) -> tuple[Spans, Spans]:
    """Draws two consecutive spans of each paragraph; their counts have the same distribution."""
    sentences = block.num_sentences[anchors].astype(np.int64)
    total = np.minimum(2 + draw_below(random_bits[:, 0], 2 * MAX_SPAN - 1), sentences)
    min_cut = np.maximum(total - MAX_SPAN, 1)
    cut = min_cut + draw_below(random_bits[:, 1], np.minimum(total - 1, MAX_SPAN) - min_cut + 1)
    start = draw_below(random_bits[:, 2], sentences - total + 1)
    return Spans(anchors.copy(), start, start + cut), Spans(anchors.copy(), start + cut, start + total)


def _search(block: Block, anchor: int) -> tuple[Spans, Spans]:
    """Returns two consecutive sentences that differ, of the anchor or of the first paragraph after it that has some."""
    for step in range(min(MAX_WALKED, len(block.paragraph))):
        paragraph = (anchor + step) % len(block.paragraph)
        spans = list_spans(paragraph, int(block.num_sentences[paragraph]), 1)
        differ = np.flatnonzero(~find_equal_texts(block, spans[:-1], spans[1:]))
        if len(differ):
            return spans[differ[0]], spans[differ[0] + 1]
    shard, document, _ = block.locate(anchor)
    raise KinspanError(
        f"document {shard.document_id(document)}: its sentences, and those of the documents after it, are one text "
        "repeated: remove the duplicates and prepare the corpus again"
    )


SOP = Objective(
    name="sop",
    max_length=128,
    num_draws=NUM_DRAWS,
    sample=sample,
    pairs_per_anchor=2,
    asks="whether A stands before B",
    negatives="the same two texts, swapped",
    source="Lan et al., 2020, *ALBERT: A Lite BERT for Self-supervised Learning of Language Representations*",
)
