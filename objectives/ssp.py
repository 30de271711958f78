"""Spans in the Same Paragraph (SSP): do A and B come from one paragraph?

Di Liello et al., 2022, "Pre-training Transformer Models with Sentence-Level Objectives for Answer Sentence
Selection", sections 4 and A.1. Of a paragraph P of at least two sentences:

- A is a span of 1-3 sentences of P;
- a positive's B is a span of 1-5 sentences of P, disjoint from A, before or after it;
- a hard negative's B is a span of another paragraph of the same document (up to two of the five pairs);
- an easy negative's B is a span of a paragraph of another document (the rest).

Where the paper contradicts itself (A.1 has hard negatives "from the same paragraph"), this follows section 4.
A negative's B has as many sentences as the positive's. Drawn freely, B's length alone tells positives from
negatives, since a positive's B must leave room for A; ``SSP_PAPER`` draws so, for comparison.

Example:
    >>> from objectives import pair_objective
    >>> pair_objective("ssp").max_length
    128
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from data_pipeline.block import Block, Spans
from data_pipeline.errors import KinspanError
from data_pipeline.order import PAIRS_PER_ANCHOR
from data_pipeline.pairs import EASY, HARD, POSITIVE, Objective, Pairs
from data_pipeline.random_words import bounded

MAX_A, MAX_B = 3, 5  # sentences, section A.1
MAX_HARD = 2  # hard negatives of an anchor, section A.1
NEGATIVES = PAIRS_PER_ANCHOR - 1
TRIES = 6  # draws of a negative: the first, and five more where its tokens equal the positive's
PROBES = 1000  # paragraphs then looked at one by one

# An anchor's words: 5 for A and the positive, then (paragraph, place, count) for each try of each negative.
FOR_POSITIVE, PER_TRY = 5, 3
NUM_WORDS = -(-(FOR_POSITIVE + TRIES * NEGATIVES * PER_TRY) // 4) * 4


def usable(num_sentences: np.ndarray) -> np.ndarray:
    """A paragraph can be an anchor where it holds two disjoint spans."""
    return num_sentences >= 2


def sample(block: Block, anchors: np.ndarray, words: np.ndarray, matched: bool = True) -> Pairs:
    """The five pairs of each anchor: the positive, up to two hard negatives, then easy ones.

    anchors: ``[n]`` usable paragraphs of ``block``;  words: ``[n, NUM_WORDS]``
    """
    a, positive = _positive(block, anchors, words, matched)
    pool = _Pool.of(block, anchors, positive.end - positive.start if matched else np.zeros_like(anchors))
    tries = words[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * NEGATIVES * PER_TRY]
    tries = tries.reshape(len(anchors), TRIES, NEGATIVES, PER_TRY)
    negative = pool.draw(block, tries[:, 0])
    wrong = _same_tokens(block, positive, negative)
    for attempt in range(1, TRIES):
        if not len(wrong[0]):
            break
        wrong = _with_other_hard(pool, wrong)
        again = pool.draw(block, tries[:, attempt])
        for field in ("paragraph", "start", "end"):
            getattr(negative, field)[wrong] = getattr(again, field)[wrong]
        wrong = _same_tokens(block, positive, negative, wrong)
    kind = np.where(pool.hard, HARD, EASY).astype(np.int8)
    for row, column in zip(*wrong, strict=True):
        _probe(block, pool, positive[row], negative, (row, column))
        kind[row, column] = EASY
    first = np.full((len(anchors), 1), POSITIVE, dtype=np.int8)
    rows = np.repeat(np.arange(len(anchors))[:, None], PAIRS_PER_ANCHOR, axis=1)
    b = (np.column_stack([getattr(positive, f), getattr(negative, f)]) for f in ("paragraph", "start", "end"))
    return Pairs(a[rows], Spans(*b), np.concatenate([first, kind], axis=1))


def _positive(block: Block, anchors: np.ndarray, words: np.ndarray, matched: bool) -> tuple[Spans, Spans]:
    """A and the positive's B: their counts, then a uniform choice among all the ways to place them."""
    sentences = block.num_sentences[anchors].astype(np.int64)
    a = np.minimum(1 + bounded(words[:, 0], MAX_A), sentences - 1)
    b = np.minimum(1 + bounded(words[:, 1], MAX_B), sentences - a)
    if matched:
        b = np.minimum(b, _longest_negative(block, anchors))
    a_first = bounded(words[:, 2], 2) == 0
    # What is left over goes before, between and after the spans: low <= high, uniform over all such pairs, by
    # folding a rectangle of (slack + 1) x (slack + 2) onto the triangle, which it covers twice.
    slack = sentences - a - b
    i, j = bounded(words[:, 3], slack + 1), bounded(words[:, 4], slack + 2)
    low, high = np.where(j <= i, j, slack - j + 1), np.where(j <= i, i, slack - i)
    a_start = np.where(a_first, low, high + b)
    b_start = np.where(a_first, high + a, low)
    return Spans(anchors, a_start, a_start + a), Spans(anchors, b_start, b_start + b)


def _longest_negative(block: Block, anchors: np.ndarray) -> np.ndarray:
    """The most sentences, ``[n]``, that a negative's B can have in the document (if it has another usable
    paragraph) and outside it. The positive's B keeps to it, so that hard negatives are never given up."""
    document = block.document[anchors]
    bounds = block.document_first[document], block.document_first[document + 1]
    ranked = block.long_enough(MAX_B)
    inside = ranked.before[:, bounds[1]] - ranked.before[:, bounds[0]]  # [counts, n]
    own = block.num_sentences[anchors] >= np.arange(MAX_B + 1)[:, None]
    possible = (ranked.total[:, None] > inside) & ((inside > own) | (inside[0] == 1))
    return np.maximum(possible.sum(axis=0) - 1, 1)  # possible is true up to some count, then false


@dataclass(frozen=True)
class _Pool:
    """Where the negatives of each anchor are drawn from, as ranks among the paragraphs that are long enough.

    counts [n]    sentences that the negative's B must have; 0: drawn freely
    first  [n]    where the paragraphs of at least so many sentences begin in ``LongEnough.paragraphs``
    start  [n]    the rank of the document's first such paragraph
    inside [n]    how many such paragraphs the document has;  total [n]: the block
    own    [n]    the rank of the anchor itself, counted from ``start``
    hard   [n, 4]
    """

    counts: np.ndarray
    first: np.ndarray
    start: np.ndarray
    inside: np.ndarray
    total: np.ndarray
    own: np.ndarray
    hard: np.ndarray

    @staticmethod
    def of(block: Block, anchors: np.ndarray, counts: np.ndarray) -> "_Pool":
        ranked = block.long_enough(MAX_B)
        document = block.document[anchors]
        start = ranked.before[counts, block.document_first[document]].astype(np.int64)
        inside = ranked.before[counts, block.document_first[document + 1]] - start
        own = ranked.before[counts, anchors] - start  # an anchor has more sentences than its B: it is among them
        total = ranked.total[counts]
        if (total == inside).any():
            raise KinspanError("the corpus, or a block of it, has usable paragraphs of one document only")
        hard = np.arange(NEGATIVES) < np.minimum(inside - 1, MAX_HARD)[:, None]
        return _Pool(counts, ranked.first[counts], start, inside, total, own, hard)

    def draw(self, block: Block, words: np.ndarray) -> Spans:
        """One negative B for each slot, ``[n, 4]``, from words ``[n, 4, PER_TRY]``."""
        others, outside = (self.inside - 1)[:, None], (self.total - self.inside)[:, None]
        drawn = bounded(words[..., 0], np.where(self.hard, others, outside))
        # The second hard negative, drawn relative to the first, is another paragraph where there are two.
        second = (drawn[:, 0] + 1 + bounded(words[:, 1, 0], np.maximum(others[:, 0] - 1, 1))) % np.maximum(
            others[:, 0], 1
        )
        drawn[:, 1] = np.where(self.hard[:, 1], second, drawn[:, 1])
        start, own, inside = self.start[:, None], self.own[:, None], self.inside[:, None]
        rank = np.where(self.hard, start + drawn + (drawn >= own), drawn + inside * (drawn >= start))
        return self.spans(block, block.long_enough(MAX_B).paragraphs[self.first[:, None] + rank], words)

    def spans(self, block: Block, paragraphs: np.ndarray, words: np.ndarray) -> Spans:
        sentences = block.num_sentences[paragraphs].astype(np.int64)
        free = np.minimum(1 + bounded(words[..., 2], MAX_B), sentences)
        count = np.where(self.counts[:, None] > 0, self.counts[:, None], free)
        start = bounded(words[..., 1], sentences - count + 1)
        return Spans(paragraphs, start, start + count)


Cells = tuple[np.ndarray, np.ndarray]  # rows and columns


def _same_tokens(block: Block, positive: Spans, negative: Spans, cells: Cells | None = None) -> Cells:
    """The cells of ``negative`` (among ``cells``) whose tokens are the positive's: boilerplate, no negative."""
    if cells is None:
        shape = negative.paragraph.shape
        cells = np.repeat(np.arange(shape[0]), shape[1]), np.tile(np.arange(shape[1]), shape[0])
    (start, end), (b_start, b_end) = block.token_bounds(positive), block.token_bounds(negative[cells])
    equal = np.flatnonzero((end - start)[cells[0]] == b_end - b_start)
    same = [
        k
        for k in equal.tolist()
        if np.array_equal(_tokens(block, positive, cells[0][k]), _tokens(block, negative, (cells[0][k], cells[1][k])))
    ]
    return cells[0][same], cells[1][same]


def _with_other_hard(pool: _Pool, cells: Cells) -> Cells:
    """Both hard negatives where one is drawn again: only drawn together are they two paragraphs."""
    chosen = np.zeros(pool.hard.shape, dtype=bool)
    chosen[cells] = True
    chosen[:, :MAX_HARD] |= (chosen[:, :MAX_HARD] & pool.hard[:, 1:2]).any(axis=1, keepdims=True)
    return np.nonzero(chosen)  # type: ignore[return-value]


def _tokens(block: Block, spans: Spans, at: tuple[int, int] | int) -> np.ndarray:
    return block.tokens_of(spans.paragraph[at], spans.start[at], spans.end[at])


def _probe(block: Block, pool: _Pool, positive: Spans, negative: Spans, cell: tuple[int, int]) -> None:
    """Where every draw gave the positive's own tokens: the next paragraph of another document that does not.

    Raises KinspanError, by document, where ``PROBES`` in a row are the same text too.
    """
    row = cell[0]
    wanted = block.tokens_of(positive.paragraph, positive.start, positive.end)
    count = int(positive.end - positive.start)
    outside = int(pool.total[row] - pool.inside[row])
    for step in range(min(PROBES, outside)):
        drawn = (int(pool.start[row]) + step) % outside
        rank = drawn + (int(pool.inside[row]) if drawn >= pool.start[row] else 0)
        paragraph = block.long_enough(MAX_B).paragraphs[pool.first[row] + rank]
        sentences = int(block.num_sentences[paragraph])
        size = min(count, sentences)  # shorter only where lengths are drawn freely
        for start in range(sentences - size + 1):
            if not np.array_equal(block.tokens_of(paragraph, start, start + size), wanted):
                negative.paragraph[cell], negative.start[cell], negative.end[cell] = paragraph, start, start + size
                return
    shard, document, _ = block.locate(positive.paragraph)
    raise KinspanError(
        f"document {shard.document_id(document)}: no paragraph of another document differs from its text; "
        "the corpus is one text repeated: remove the duplicates and prepare it again"
    )


SSP = Objective("ssp", 128, NUM_WORDS, usable, "a paragraph of at least two sentences", sample)
SSP_PAPER = Objective("ssp", 128, NUM_WORDS, usable, SSP.needs, partial(sample, matched=False))
