"""Spans in the Same Paragraph (SSP): do A and B come from one paragraph?

Di Liello et al., 2022, sections 4 and A.1. An anchor is a paragraph P of at least two sentences, and makes five pairs:

- A is a span of 1-3 sentences of P, the same one in all five pairs;
- the positive's B is a span of 1-5 sentences of P, disjoint from A, before or after it;
- a hard negative's B is a span of another paragraph of the same document (up to two of the four negatives);
- an easy negative's B is a span of a paragraph of another document (the rest).

Where the paper contradicts itself (A.1 has hard negatives "from the same paragraph"), this follows section 4.
A negative's B has as many sentences as the positive's, and its paragraph, too, has at least two. If it were
drawn freely, B's length alone would tell positives from negatives: a positive's B must leave room for A, and a sentence
that is a paragraph by itself is longer than others. ``SSP_PAPER`` draws so, for comparison.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from data_pipeline.sampling.block import Block, ClassIndex, Spans
from data_pipeline.sampling.pairs import DI_LIELLO, Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below

from .negatives import NUM_NEGATIVES, TRIES, Pool, assemble, find_equal_texts, list_spans

MAX_A, MAX_B = 3, 5  # sentences, section A.1

# An anchor's draws: 5 for A and the positive, then (paragraph, start, count) for each try of each negative.
FOR_POSITIVE, PER_TRY = 5, 3
NUM_DRAWS = -(-(FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY) // 4) * 4


def index_by_min_sentences(block: Block) -> ClassIndex:
    """Returns an index: class c, 1 .. MAX_B, has the paragraphs of at least max(c, 2) sentences; class 0 has all."""
    return ClassIndex(block.num_sentences >= np.array([0, 2, *range(2, MAX_B + 1)], dtype=np.int32)[:, None])


def sample(block: Block, anchors: np.ndarray, random_bits: np.ndarray, matched: bool = True) -> Pairs:
    """Returns the five pairs of each anchor: the positive, up to two hard negatives, then easy ones.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    a, positive = _draw_positive(block, anchors, random_bits, matched)
    counts = positive.end - positive.start if matched else np.zeros_like(anchors)
    pool = Pool.of(block, anchors, block.make_once(index_by_min_sentences), counts[:, None])
    tries = random_bits[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY]
    tries = tries.reshape(len(anchors), TRIES, NUM_NEGATIVES, PER_TRY)

    def draw(attempt: int) -> Spans:
        paragraphs = pool.draw(tries[:, attempt, :, 0])
        sentences = block.num_sentences[paragraphs].astype(np.int64)
        free = np.minimum(1 + draw_below(tries[:, attempt, :, 2], MAX_B), sentences)
        count = counts[:, None] if matched else free
        start = draw_below(tries[:, attempt, :, 1], sentences - count + 1)
        return Spans(paragraphs, start, start + count)

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        return find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        sentences = int(block.num_sentences[paragraph])
        size = min(int(positive.end[row] - positive.start[row]), sentences)  # shorter only where drawn freely
        return list_spans(paragraph, sentences, size)

    return assemble(block, a, positive, pool.hard, draw, rejects, cut, pool.walk_outside)


def _draw_positive(block: Block, anchors: np.ndarray, random_bits: np.ndarray, matched: bool) -> tuple[Spans, Spans]:
    """Draws A and the positive's B: first their counts are drawn, then one of all the ways to place them, uniformly."""
    sentences = block.num_sentences[anchors].astype(np.int64)
    a = np.minimum(1 + draw_below(random_bits[:, 0], MAX_A), sentences - 1)
    b = np.minimum(1 + draw_below(random_bits[:, 1], MAX_B), sentences - a)
    if matched:
        b = np.minimum(b, _get_max_negative(block, anchors))
    a_first = draw_below(random_bits[:, 2], 2) == 0
    # The sentences left over are before, between and after the spans: low <= high, uniform over all such pairs, by
    # folding a rectangle of (slack + 1) x (slack + 2) onto the triangle, which it covers twice.
    slack = sentences - a - b
    i, j = draw_below(random_bits[:, 3], slack + 1), draw_below(random_bits[:, 4], slack + 2)
    low, high = np.where(j <= i, j, slack - j + 1), np.where(j <= i, i, slack - i)
    a_start = np.where(a_first, low, high + b)
    b_start = np.where(a_first, high + a, low)
    return Spans(anchors, a_start, a_start + a), Spans(anchors, b_start, b_start + b)


def _get_max_negative(block: Block, anchors: np.ndarray) -> np.ndarray:
    """Returns the most sentences, ``[n]``, that a negative's B can have in the document (if it has another usable
    paragraph) and outside it: the positive's B has no more."""
    document = block.document[anchors]
    bounds = block.document_first[document], block.document_first[document + 1]
    index = block.make_once(index_by_min_sentences)
    inside = index.before[:, bounds[1]] - index.before[:, bounds[0]]  # [counts, n]
    fits = block.num_sentences[anchors] >= np.arange(MAX_B + 1)[:, None]
    possible = (index.total[:, None] > inside) & ((inside > fits) | (inside[1] == 1))
    return np.maximum(possible.sum(axis=0) - 1, 1)  # possible is true up to some count, then false


SSP = Objective(
    name="ssp",
    max_length=128,
    num_draws=NUM_DRAWS,
    sample=sample,
    asks="whether A and B come from the same paragraph",
    negatives="spans of as many sentences, of the same document (hard, up to two of four) and of others (easy)",
    source=DI_LIELLO,
)
SSP_PAPER = replace(SSP, sample=partial(sample, matched=False), negatives="drawn freely, as the paper does")
