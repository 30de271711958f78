"""Paragraphs in the Same Document (PSD): do A and B come from one document?

Di Liello et al., 2022, sections 4 and A.1. An anchor is a paragraph of a document of at least two, and makes five
pairs:

- A is the anchor;
- the positive's B is another paragraph of its document, anywhere in it;
- an easy negative's B is a paragraph of another document (all four negatives). There are no hard ones.

A negative's B is drawn among the other documents' paragraphs whose number of tokens is nearest to that of the
positive's B; a document of one paragraph gives negatives, too. Paragraphs of one document are alike in length, so that
if they were drawn freely, lengths would tell the label; ``PSD_PAPER`` draws so, for comparison.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.block import Block, ClassIndex, Spans
from data_pipeline.sampling.pairs import DI_LIELLO, Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below

from .negatives import MAX_WALKED, NUM_NEGATIVES, TRIES, Pool, assemble, find_equal_texts

# A negative is drawn among the nearest in length: on either side this share of all paragraphs, at least this number.
NEAR_SHARE, NEAR_MIN = 0.005, 16

# An anchor's draws: 1 for the positive, then one for each try of each negative.
NUM_DRAWS = -(-(1 + TRIES * NUM_NEGATIVES) // 4) * 4


def usable(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Accepts the paragraphs whose document has another one."""
    return num_paragraphs >= 2


def sample(block: Block, anchors: np.ndarray, random_bits: np.ndarray, matched: bool = True) -> Pairs:
    """Returns the five pairs of each anchor: the positive, then four easy negatives.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    document = block.document[anchors]
    first = block.document_first[document].astype(np.int64)
    number = draw_below(random_bits[:, 0], block.document_first[document + 1] - first - 1)
    b = first + number + (first + number >= anchors)
    if len(block.document_first) == 2:
        raise KinspanError("the corpus, or a block of it, has usable paragraphs of one document only")
    a, positive = block.take_whole(anchors), block.take_whole(b)
    if matched:
        pool: _NearInLength | Pool = _NearInLength(block, anchors, b)
    else:
        pool = Pool.of(block, anchors, block.make_once(_index_all), np.zeros((len(anchors), 1), np.int64), max_hard=0)
    tries = random_bits[:, 1 : 1 + TRIES * NUM_NEGATIVES].reshape(len(anchors), TRIES, NUM_NEGATIVES)

    def draw(attempt: int) -> Spans:
        return block.take_whole(pool.draw(tries[:, attempt]))

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        """Tells which have the text of A or of the positive's B."""
        return find_equal_texts(block, a[rows], texts) | find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        return block.take_whole(np.array([paragraph]))

    return assemble(block, a, positive, pool.hard, draw, rejects, cut, pool.walk_outside)


class ByLength:
    """Orders paragraphs by number of tokens, and locates those of each document in that order.

    order     [P] paragraphs, the shortest first
    position  [P] each paragraph's index in ``order``
    number    [P] its index among those of its document, the shortest first
    outside   [P] document by document, the shortest first: document * (P + 1) + how many paragraphs of other documents
              come before it in ``order``; ascending
    """

    def __init__(self, block: Block) -> None:
        count = len(block.paragraph)
        order = np.argsort(block.count_tokens(block.take_whole(np.arange(count))), kind="stable")
        self.order = order.astype(np.int32)
        self.position, self.number = np.empty_like(self.order), np.empty_like(self.order)
        self.position[order] = np.arange(count)
        by_document = order[np.argsort(block.document[order], kind="stable")]
        self.number[by_document] = np.arange(count) - block.document_first[block.document[by_document]]
        before = (self.position - self.number)[by_document]
        self.outside = block.document[by_document] * np.int64(count + 1) + before


class _NearInLength:
    """Draws paragraphs of other documents, about as long as the positive's B.

    They are numbered from the shortest to the longest; an anchor draws from a window around the positive's B.

    document, first, size  [n]  the anchor's document, its first paragraph, and how many it has
    low, width             [n]  the window
    centre                 [n]  where the positive's B would be
    hard                   [n, 4]  False
    """

    def __init__(self, block: Block, anchors: np.ndarray, b: np.ndarray) -> None:
        self.by_length, self.document = block.make_once(ByLength), block.document[anchors]
        self.first = block.document_first[self.document].astype(np.int64)
        self.size = block.document_first[self.document + 1] - self.first
        reach = max(NEAR_MIN, int(NEAR_SHARE * len(block.paragraph)))
        others = len(block.paragraph) - self.size
        self.width = np.minimum(2 * reach + 1, others)
        self.centre = self.by_length.position[b].astype(np.int64) - self.by_length.number[b]
        self.low = np.clip(self.centre - reach, 0, others - self.width)
        self.hard = np.zeros((len(anchors), NUM_NEGATIVES), dtype=bool)

    def draw(self, random_bits: np.ndarray) -> np.ndarray:
        number = self.low[:, None] + draw_below(random_bits, self.width[:, None])
        return self._find_paragraphs(np.arange(len(self.low))[:, None], number)

    def _find_paragraphs(self, rows: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Returns the paragraphs of other documents with these numbers, skipping those of the rows' own documents."""
        sought = self.document[rows] * np.int64(len(self.by_length.order) + 1) + number
        own_before = np.searchsorted(self.by_length.outside, sought, side="right") - self.first[rows]
        return self.by_length.order[number + own_before].astype(np.int64)

    def walk_outside(self, row: int) -> Iterator[int]:
        """Yields paragraphs of other documents from the length of the positive's B outwards."""
        others, centre = len(self.by_length.order) - int(self.size[row]), int(self.centre[row])
        for step in range(min(MAX_WALKED, others)):
            for number in (centre + step, centre - step - 1):
                if 0 <= number < others:
                    yield int(self._find_paragraphs(np.array(row), np.array(number)))


def _index_all(block: Block) -> ClassIndex:
    return ClassIndex(np.ones((1, len(block.paragraph)), dtype=bool))


PSD = Objective(
    name="psd",
    max_length=256,
    num_draws=NUM_DRAWS,
    usable=usable,
    needs="a document of at least two paragraphs",
    sample=sample,
    asks="whether A and B are paragraphs of the same document",
    negatives="four paragraphs of other documents, about as long",
    source=DI_LIELLO,
)
PSD_PAPER = replace(PSD, sample=partial(sample, matched=False), negatives="drawn freely, as the paper does")
