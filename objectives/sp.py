"""Span in Paragraph (SP): was A taken out of B?

Di Liello et al., 2022, sections 4 and A.1. An anchor is a paragraph P of at least two sentences, and makes five pairs:

- A is a span of 1-3 sentences of P, the same one in all five pairs;
- the positive's B is P without A;
- a hard negative's B is Q without a span of 1-3 of its sentences, where Q is another paragraph of the same document
  (up to two of the four negatives). Something is left out in negatives too, so that a gap does not give the label away;
- an easy negative's B is the same of a paragraph of another document (the rest).

From a negative's Q as many sentences are taken as A has, and Q is drawn by how likely P would have given such an A.
The Bs of positives and negatives are then equally long on average, for each length of A. If both were drawn freely, a
short A would go with a short paragraph in positives alone; ``SP_PAPER`` draws so, for comparison.

Three pairs of one anchor (from Wikipedia, "Foreign relations of Angola" and "Arminianism", CC BY-SA):

    A         Angola has an embassy in Moscow and an honorary consulate in Saint Petersburg.
    positive  Russia has an embassy in Luanda. Angola and the precursor to Russia, the Soviet Union, established
              relations upon Angola's independence.
    hard      Angola and Vietnam have steadfast partners as both transitioned from Cold War-era foreign policies of
              international communism to pro-Western pragmatism following the fall of the Soviet Union.
    easy      Those who signed this Remonstrance and others who supported its theology have since been known as
              Remonstrants."
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from data_pipeline.sampling.block import Block, ClassIndex, Spans
from data_pipeline.sampling.pairs import DI_LIELLO, TWO_SENTENCES, Objective, Pairs, has_two_sentences
from data_pipeline.sampling.random_bits import draw_below

from .negatives import NUM_NEGATIVES, TRIES, Pool, assemble, find_equal_texts, list_spans

MAX_A = 3  # sentences, section A.1

# An anchor's draws: 2 for A, then (paragraph, count, place) for each try of each negative.
FOR_POSITIVE, PER_TRY = 2, 3
NUM_DRAWS = -(-(FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY) // 4) * 4


@cache  # so that a block makes it once
def index_by_sentences(most: int) -> Callable[[Block], ClassIndex]:
    """Class c, for c = 0 .. most - 1, is the paragraphs of c + 2 sentences; the last class has longer ones, too."""
    return lambda block: ClassIndex.of(np.minimum(block.num_sentences - 2, most - 1) == np.arange(most)[:, None])


def sample(
    block: Block, anchors: np.ndarray, random_bits: np.ndarray, max_a: int = MAX_A, matched: bool = True
) -> Pairs:
    """Returns the five pairs of each anchor: the positive, up to two hard negatives, then easy ones.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    index = block.make_once(index_by_sentences(max_a))
    most = np.minimum(block.num_sentences[anchors] - 1, max_a).astype(np.int64)
    if matched:
        most = np.minimum(most, _longest_removed(block, anchors, index))
    size = 1 + draw_below(random_bits[:, 0], most)
    a = _draw_span(block, anchors, size, random_bits[:, 1])
    positive = _without(block, a)
    classes = np.tile(np.arange(max_a), (len(anchors), 1))
    pool = Pool.of(block, anchors, index, classes, _weights(size, max_a) if matched else None)
    tries = random_bits[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * NUM_NEGATIVES * PER_TRY]
    tries = tries.reshape(len(anchors), TRIES, NUM_NEGATIVES, PER_TRY)

    def draw(attempt: int) -> Spans:
        paragraphs = pool.draw(tries[:, attempt, :, 0])
        free = 1 + draw_below(tries[:, attempt, :, 1], np.minimum(block.num_sentences[paragraphs] - 1, max_a))
        removed = np.broadcast_to(size[:, None], paragraphs.shape) if matched else free
        return _without(block, _draw_span(block, paragraphs, removed, tries[:, attempt, :, 2]))

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        """Returns those that are the positive's B, or whose paragraph has the text of P: A may stand in it."""
        same_paragraph = find_equal_texts(block, block.take_whole(anchors[rows]), block.take_whole(texts.paragraph))
        return same_paragraph | find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        sentences = int(block.num_sentences[paragraph])
        return _without(block, list_spans(paragraph, sentences, min(int(size[row]), sentences - 1)))

    return assemble(block, a, positive, pool, draw, rejects, cut)


def _draw_span(block: Block, paragraphs: np.ndarray, size: np.ndarray, random_bits: np.ndarray) -> Spans:
    """Draws a span of ``size`` sentences, each of its places alike."""
    start = draw_below(random_bits, block.num_sentences[paragraphs] - size + 1)
    return Spans(paragraphs, start, start + size)


def _without(block: Block, part: Spans) -> Spans:
    whole = block.take_whole(part.paragraph)
    return Spans(whole.paragraph, whole.start, whole.end, part.start, part.end)


def _weights(size: np.ndarray, max_a: int) -> np.ndarray:
    """Returns ``[n, max_a]``: how likely a paragraph of each class gives an A of that size, as whole numbers."""
    most = np.arange(1, max_a + 1)
    likely = np.lcm.reduce(most) // most
    return np.where(size[:, None] <= most, likely, 0)


def _longest_removed(block: Block, anchors: np.ndarray, index: ClassIndex) -> np.ndarray:
    """Returns the most sentences, ``[n]``, that can be taken from another paragraph of the document (if it has one) and
    from one of another document: A has no more.
    """
    document = block.document[anchors]
    first, last = block.document_first[document], block.document_first[document + 1]
    inside = index.before[:, last] - index.before[:, first]  # [classes, n]
    others = inside - (index.before[:, anchors + 1] - index.before[:, anchors])
    outside = index.total[:, None] - inside
    enough = _at_least(outside) & (_at_least(others) | (others.sum(axis=0) == 0))
    return np.maximum(enough.sum(axis=0), 1)


def _at_least(counts: np.ndarray) -> np.ndarray:
    """Returns ``[classes, n]``: whether there is a paragraph of the class or a longer one."""
    return counts[::-1].cumsum(axis=0)[::-1] > 0


SP = Objective(
    name="sp",
    max_length=256,
    num_draws=NUM_DRAWS,
    usable=has_two_sentences,
    needs=TWO_SENTENCES,
    sample=sample,
    asks="whether A was taken out of the paragraph B",
    negatives="other paragraphs without as many sentences, of the document (hard, up to two of four) or of others",
    source=DI_LIELLO,
)
SP_PAPER = replace(SP, sample=partial(sample, matched=False), negatives="drawn freely, as the paper does")
