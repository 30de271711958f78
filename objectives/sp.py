"""Span in Paragraph (SP): was A taken out of B?

Di Liello et al., 2022, sections 4 and A.1. An anchor is a paragraph P of at least two sentences, and makes five pairs:

- A is a span of 1-3 sentences of P, the same one in all five pairs;
- the positive's B is P without A;
- a hard negative's B is Q without a span of 1-3 of its sentences, where Q is another paragraph of the same document
  (up to two of the four negatives). Something is left out in negatives too, so that a gap does not give the label away;
- an easy negative's B is made likewise from a paragraph of another document (the rest).

As many sentences are taken from a negative's Q as A has, and Q is drawn in proportion to how likely it would itself
give such an A. The Bs of positives and negatives are then equally long on average, for each length of A. If both were
drawn freely, only positives would have a short A with a short paragraph; ``SP_PAPER`` draws so, for comparison.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from data_pipeline.sampling.block import Block, ClassIndex, Spans
from data_pipeline.sampling.pairs import DI_LIELLO, Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below

from .negatives import NUM_NEGATIVES, TRIES, Pool, assemble, find_equal_texts, list_spans

MAX_A = 3  # sentences, section A.1

# An anchor's draws: 2 for A, then (paragraph, count, start) for each try of each negative.
FOR_POSITIVE, PER_TRY = 2, 3
NUM_DRAWS = -(-(FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY) // 4) * 4


@cache  # so that make_once gets the same function again
def index_by_sentences(count: int) -> Callable[[Block], ClassIndex]:
    """Returns an indexer: class c has the paragraphs of c + 2 sentences, the last of ``count`` longer ones, too."""
    return lambda block: ClassIndex(np.minimum(block.num_sentences - 2, count - 1) == np.arange(count)[:, None])


def sample(
    block: Block, anchors: np.ndarray, random_bits: np.ndarray, max_a: int = MAX_A, matched: bool = True
) -> Pairs:
    """Returns the five pairs of each anchor: the positive, up to two hard negatives, then easy ones.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    index = block.make_once(index_by_sentences(max_a))
    max_size = np.minimum(block.num_sentences[anchors] - 1, max_a).astype(np.int64)
    if matched:
        max_size = np.minimum(max_size, _get_max_removed(block, anchors, index))
    size = 1 + draw_below(random_bits[:, 0], max_size)
    a = _draw_span(block, anchors, size, random_bits[:, 1])
    positive = _cut_out(block, a)
    classes, max_sizes = np.tile(np.arange(max_a), (len(anchors), 1)), np.arange(1, max_a + 1)
    # How likely a paragraph of each class gives an A of that size, as whole numbers
    weights = np.where(size[:, None] <= max_sizes, np.lcm.reduce(max_sizes) // max_sizes, 0)
    pool = Pool.of(block, anchors, index, classes, weights if matched else None)
    tries = random_bits[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY]
    tries = tries.reshape(len(anchors), TRIES, NUM_NEGATIVES, PER_TRY)

    def draw(attempt: int) -> Spans:
        paragraphs = pool.draw(tries[:, attempt, :, 0])
        free = 1 + draw_below(tries[:, attempt, :, 1], np.minimum(block.num_sentences[paragraphs] - 1, max_a))
        removed = np.broadcast_to(size[:, None], paragraphs.shape) if matched else free
        return _cut_out(block, _draw_span(block, paragraphs, removed, tries[:, attempt, :, 2]))

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        """Tells which equal the positive's B, or come from a paragraph equal to P, which may contain A."""
        same_paragraph = find_equal_texts(block, block.take_whole(anchors[rows]), block.take_whole(texts.paragraph))
        return same_paragraph | find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        sentences = int(block.num_sentences[paragraph])
        return _cut_out(block, list_spans(paragraph, sentences, min(int(size[row]), sentences - 1)))

    return assemble(block, a, positive, pool.hard, draw, rejects, cut, pool.walk_outside)


def _draw_span(block: Block, paragraphs: np.ndarray, size: np.ndarray, random_bits: np.ndarray) -> Spans:
    """Draws a span of ``size`` sentences, uniformly among its possible starts."""
    start = draw_below(random_bits, block.num_sentences[paragraphs] - size + 1)
    return Spans(paragraphs, start, start + size)


def _cut_out(block: Block, part: Spans) -> Spans:
    whole = block.take_whole(part.paragraph)
    return Spans(whole.paragraph, whole.start, whole.end, part.start, part.end)


def _get_max_removed(block: Block, anchors: np.ndarray, index: ClassIndex) -> np.ndarray:
    """Returns the most sentences, ``[n]``, that can be removed from another paragraph of the document (if it has one)
    and from one of another document: A has no more."""
    document = block.document[anchors]
    first, last = block.document_first[document], block.document_first[document + 1]
    inside = index.before[:, last] - index.before[:, first]  # [classes, n]
    others = inside - (index.before[:, anchors + 1] - index.before[:, anchors])
    outside = index.total[:, None] - inside
    enough = _has_at_least(outside) & (_has_at_least(others) | (others.sum(axis=0) == 0))
    return np.maximum(enough.sum(axis=0), 1)


def _has_at_least(counts: np.ndarray) -> np.ndarray:
    """Returns ``[classes, n]``: whether there is a paragraph of the class or a longer one."""
    return counts[::-1].cumsum(axis=0)[::-1] > 0


SP = Objective(
    name="sp",
    max_length=256,
    num_draws=NUM_DRAWS,
    sample=sample,
    asks="whether A was taken out of the paragraph B",
    negatives="other paragraphs without as many sentences, of the document (hard, up to two of four) or of others",
    source=DI_LIELLO,
)
SP_PAPER = replace(SP, sample=partial(sample, matched=False), negatives="drawn freely, as the paper does")
