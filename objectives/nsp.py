"""Next Sentence Prediction (NSP): does B follow A?

Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", section 3.1
(task 2). An anchor is a paragraph P of at least two sentences, and makes two pairs:

- A is a span of 1-3 sentences of P, the same one in both pairs;
- the positive's B is the 1-5 sentences of P that follow A;
- the easy negative's B is a span of another document, of as many sentences. There are no hard ones.

The counts of sentences are those of SSP. A positive's B never begins its paragraph and often ends it. So a negative's B
comes from a paragraph of as many sentences, in a place that a positive's B could have: B alone does not give the label
away. Paragraphs of CLASSES + 1 sentences or more count as equally long; so do all if no other document has such one.
"""

from dataclasses import replace

import numpy as np

from data_pipeline.sampling.block import Block, Spans
from data_pipeline.sampling.pairs import Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below

from .negatives import TRIES, Pool, assemble, find_equal_texts, list_spans
from .sp import index_by_sentences
from .ssp import MAX_A, MAX_B

CLASSES = MAX_A + MAX_B - 1  # class c has the paragraphs of c + 2 sentences, the last one longer ones, too
# An anchor's draws: 3 for A and the positive, then (paragraph, start) for each try of the negative.
FOR_POSITIVE, PER_TRY = 3, 2
NUM_DRAWS = -(-(FOR_POSITIVE + TRIES * PER_TRY) // 4) * 4


def sample(block: Block, anchors: np.ndarray, random_bits: np.ndarray) -> Pairs:
    """Returns the two pairs of each anchor: the next text, and one of another document.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    index, document = block.make_once(index_by_sentences(CLASSES)), block.document[anchors]
    inside = index.before[:, block.document_first[document + 1]] - index.before[:, block.document_first[document]]
    is_outside = (index.total[:, None] > inside).T  # [n, CLASSES]
    a, positive = _draw_positive(block, anchors, random_bits, 1 + CLASSES - is_outside[:, ::-1].argmax(axis=1))
    size, total = (a.end - a.start)[:, None], (positive.end - a.start)[:, None]
    classes = np.tile(np.arange(CLASSES), (len(anchors), 1))
    is_equal = classes == np.minimum(block.num_sentences[anchors] - 2, CLASSES - 1)[:, None]
    has_equal = (is_equal & is_outside).any(axis=1, keepdims=True)
    weights = np.where(has_equal, is_equal, classes + 2 >= total).astype(np.int64)
    pool = Pool.of(block, anchors, index, classes, weights, slots=1, max_hard=0)
    tries = random_bits[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * PER_TRY].reshape(len(anchors), TRIES, 1, PER_TRY)

    def draw(attempt: int) -> Spans:
        paragraphs = pool.draw(tries[:, attempt, :, 0])
        start = draw_below(tries[:, attempt, :, 1], block.num_sentences[paragraphs] - total + 1)
        return Spans(paragraphs, start + size, start + total)

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        return find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        spans = list_spans(paragraph, int(block.num_sentences[paragraph]), int(total[row, 0] - size[row, 0]))
        return spans.map(lambda array: np.roll(array, -1))  # the paragraph's first text last

    anywhere = replace(pool, weights=(classes + 2 >= total - size).astype(np.int64))
    return assemble(block, a, positive, pool.hard, draw, rejects, cut, anywhere.walk_outside)


def _draw_positive(
    block: Block, anchors: np.ndarray, random_bits: np.ndarray, longest: np.ndarray
) -> tuple[Spans, Spans]:
    """Draws A and B. ``longest``: the most sentences of a paragraph of another document, to which both are limited"""
    sentences = block.num_sentences[anchors].astype(np.int64)
    room = np.minimum(sentences, np.where(longest == CLASSES + 1, sentences, longest))
    a = np.minimum(1 + draw_below(random_bits[:, 0], MAX_A), room - 1)
    b = np.minimum(1 + draw_below(random_bits[:, 1], MAX_B), room - a)
    start = draw_below(random_bits[:, 2], sentences - a - b + 1)
    return Spans(anchors, start, start + a), Spans(anchors, start + a, start + a + b)


NSP = Objective(
    name="nsp",
    max_length=128,
    num_draws=NUM_DRAWS,
    sample=sample,
    pairs_per_anchor=2,
    asks="whether B follows A",
    negatives="a text of another document, of as many sentences and in the same places",
    source="Devlin et al., 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding*",
)
