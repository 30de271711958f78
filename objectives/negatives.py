"""Draws negatives: paragraphs of the anchor's document (hard) and of others (easy), drawn again where texts are equal.

An objective says which paragraphs suit an anchor, as classes with weights, and how a text is cut from a paragraph. Here
a paragraph is drawn for each slot of an anchor, in proportion to the weights; two hard negatives use two paragraphs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.block import Block, ClassIndex, Spans, join_columns
from data_pipeline.sampling.packing import copy_text
from data_pipeline.sampling.pairs import EASY, HARD, PAIRS_PER_ANCHOR, POSITIVE, Pairs
from data_pipeline.sampling.random_bits import draw_below

NUM_NEGATIVES = PAIRS_PER_ANCHOR - 1
MAX_HARD = 2  # hard negatives per anchor, Di Liello et al., 2022, section A.1
TRIES = 6  # draws per negative: the first, and up to five more where its text cannot be a negative
PREFIX = 4  # this many first tokens of two texts are compared before the whole texts
MAX_WALKED = 1000  # when all tries failed, at most this many paragraphs are tried one by one
NO_NEGATIVE = (
    "no paragraph of another document differs from its text; the corpus is one text repeated: remove the duplicates "
    "and prepare it again"
)

Cells = tuple[np.ndarray, np.ndarray]  # rows and columns of [n, k]


@dataclass(frozen=True)
class Pool:
    """Holds what the negatives of n anchors are drawn from: K classes of paragraphs, without the anchor itself.

    index    the block's paragraphs by class
    classes  [n, K]  the classes that suit the anchor; no paragraph is in two of them
    weights  [n, K]  how likely a paragraph of each class is drawn, relative to the others
    start    [n, K]  how many paragraphs of the class come before the anchor's document in the block
    inside   [n, K]  how many paragraphs of the class the document has
    place    [n, K]  the anchor's index among those of the document; -1 if it is not in the class
    hard     [n, k]  which of the k slots are filled from the document
    """

    index: ClassIndex
    classes: np.ndarray
    weights: np.ndarray
    start: np.ndarray
    inside: np.ndarray
    place: np.ndarray
    hard: np.ndarray

    @staticmethod
    def of(
        block: Block,
        anchors: np.ndarray,
        index: ClassIndex,
        classes: np.ndarray,
        weights: np.ndarray | None = None,
        slots: int = NUM_NEGATIVES,
        max_hard: int = MAX_HARD,
    ) -> "Pool":
        """Returns the pool of these anchors ``[n]``. Raises KinspanError if no class of an anchor has a paragraph of
        another document.

        slots: negatives per anchor;  max_hard: how many of them may be of the anchor's document
        """
        weights = np.ones_like(classes) if weights is None else weights
        document = block.document[anchors][:, None]
        start = index.before[classes, block.document_first[document]].astype(np.int64)
        inside = index.before[classes, block.document_first[document + 1]] - start
        position = index.before[classes, anchors[:, None]]
        member = index.before[classes, anchors[:, None] + 1] > position
        place = np.where(member, position - start, -1)
        others = ((inside - member) * (weights > 0)).sum(axis=1)
        pool = Pool(index, classes, weights, start, inside, place, np.zeros((len(anchors), slots), dtype=bool))
        if not pool.count_outside().sum(axis=1).all():
            raise KinspanError("the corpus, or a block of it, has usable paragraphs of one document only")
        return replace(pool, hard=np.arange(slots) < np.minimum(others, max_hard)[:, None])

    def count_outside(self) -> np.ndarray:
        """Returns ``[n, K]``: the number of the other documents' paragraphs, times their weight."""
        return (self.index.total[self.classes] - self.inside) * self.weights

    def draw(self, random_bits: np.ndarray) -> np.ndarray:
        """Draws a paragraph for each slot, ``[n, k]``, from one draw each, ``random_bits [n, k]``."""
        others = (self.inside - (self.place >= 0)) * self.weights  # of the document, without the anchor
        outside = self.count_outside()
        inside = others.sum(axis=1)[:, None]
        drawn = draw_below(random_bits, np.where(self.hard, inside, outside.sum(axis=1)[:, None]))
        if self.hard.shape[1] > 1:
            drawn[:, 1] = np.where(
                self.hard[:, 1], self._draw_second_hard(drawn[:, 0], random_bits[:, 1], others), drawn[:, 1]
            )
        paragraphs = np.empty(random_bits.shape, dtype=np.int64)
        before_inside = before_outside = np.zeros(len(random_bits), dtype=np.int64)
        for k in range(self.classes.shape[1]):  # the interval of the class that the number fell into
            low = np.where(self.hard, before_inside[:, None], before_outside[:, None])
            before_inside, before_outside = before_inside + others[:, k], before_outside + outside[:, k]
            high = np.where(self.hard, before_inside[:, None], before_outside[:, None])
            cells = np.nonzero((drawn >= low) & (drawn < high)) if self.classes.shape[1] > 1 else ...
            paragraphs[cells] = self._find_paragraphs(k, drawn - low)[cells]
        return paragraphs

    def _draw_second_hard(self, first: np.ndarray, random_bits: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Returns the second hard negative's number, outside the interval of the paragraph that ``first`` fell into."""
        low = np.zeros_like(first)
        width = np.ones_like(first)
        before = np.zeros_like(first)
        for k in range(others.shape[1]):
            inside = (first >= before) & (first < before + others[:, k])
            weight = np.maximum(self.weights[:, k], 1)
            low = np.where(inside, before + (first - before) // weight * weight, low)
            width = np.where(inside, weight, width)
            before = before + others[:, k]
        drawn = draw_below(random_bits, np.maximum(before - width, 1))
        return drawn + width * (drawn >= low)

    def _find_paragraphs(self, k: int, drawn: np.ndarray) -> np.ndarray:
        """Returns the paragraphs of the k-th class that the numbers within its interval stand for, ``[n, slots]``."""
        start, place, inside, classes = (x[:, k, None] for x in (self.start, self.place, self.inside, self.classes))
        number = drawn // np.maximum(self.weights[:, k, None], 1)
        of_document = start + number + ((place >= 0) & (number >= place))
        position = np.where(self.hard, of_document, number + inside * (number >= start))
        position = self.index.first[classes] + position
        return self.index.paragraphs[np.clip(position, 0, len(self.index.paragraphs) - 1)]

    def walk_outside(self, row: int) -> Iterator[int]:
        """Yields paragraphs of other documents, from the anchor's document on; at most MAX_WALKED of each class."""
        for k in np.flatnonzero(self.count_outside()[row]):
            total = int(self.index.total[self.classes[row, k]])
            start, inside = int(self.start[row, k]), int(self.inside[row, k])
            for step in range(min(MAX_WALKED, total - inside)):
                position = (start + inside + step) % total
                yield int(self.index.paragraphs[self.index.first[self.classes[row, k]] + position])


def assemble(
    block: Block,
    a: Spans,
    positive: Spans,
    hard: np.ndarray,
    draw: Callable[[int], Spans],
    rejects: Callable[[np.ndarray, Spans], np.ndarray],
    cut: Callable[[int, int], Spans],
    walk_outside: Callable[[int], Iterator[int]],
    complaint: str = NO_NEGATIVE,
) -> Pairs:
    """Returns the pairs of each anchor: the positive, then a negative for each slot.

    a, positive: ``[n]``
    hard:    ``[n, k]`` which slots are filled from the anchor's document
    draw:    index of a try -> a negative for each slot, ``[n, k]``
    rejects: (rows ``[m]``, texts ``[m]``) -> which of the texts cannot be negatives of the row's anchor, ``[m]``
    cut:     (row, paragraph) -> all texts ``[m]`` that a negative of this paragraph could be; for when all tries failed
    walk_outside: row -> the paragraphs that are cut then
    """
    negative = draw(0)
    rows, slots = negative.paragraph.shape
    cells: Cells = (np.repeat(np.arange(rows), slots), np.tile(np.arange(slots), rows))
    for attempt in range(1, TRIES + 1):
        wrong = rejects(cells[0], negative[cells])
        cells = cells[0][wrong], cells[1][wrong]
        if not len(cells[0]) or attempt == TRIES:
            break
        cells = _add_other_hard(hard, cells)
        negative.put(cells, draw(attempt)[cells])
    kind = np.where(hard, HARD, EASY).astype(np.int8)
    for row, slot in zip(*(x.tolist() for x in cells), strict=True):  # all tries failed: search other documents
        for paragraph in walk_outside(row):
            texts = cut(row, paragraph)
            valid = np.flatnonzero(~rejects(np.full(len(texts.paragraph), row), texts))
            if len(valid):
                break
        else:
            shard, document, _ = block.locate(positive.paragraph[row])
            raise KinspanError(f"document {shard.document_id(document)}: {complaint}")
        negative.put((row, slot), texts[valid[0]])
        kind[row, slot] = EASY
    first = np.full((rows, 1), POSITIVE, dtype=np.int8)
    repeated = a.map(lambda x: np.repeat(x[:, None], 1 + slots, axis=1))
    return Pairs((repeated, join_columns(positive, negative)), np.concatenate([first, kind], axis=1))


def find_equal_texts(block: Block, a: Spans, b: Spans) -> np.ndarray:
    """Returns ``[m]``: whether two texts have the same tokens."""
    lengths = block.count_tokens(a)
    equal = lengths == block.count_tokens(b)
    for longest in (PREFIX, lengths.max(initial=0)):
        same = np.flatnonzero(equal)
        length = np.minimum(lengths[same], longest)
        at = np.cumsum(length) - length
        rows = np.empty((2, length.sum()), dtype=np.int32)
        for row, spans in zip(rows, (a[same], b[same]), strict=True):
            copy_text(row, at, length, block, spans.paragraph, block.find_runs(spans))
        equal[same] = np.logical_and.reduceat(rows[0] == rows[1], at)
    return equal


def list_spans(paragraph: int, num_sentences: int, size: int) -> Spans:
    """Returns all spans of ``size`` sentences of a paragraph, ``[num_sentences - size + 1]``."""
    start = np.arange(num_sentences - size + 1)
    return Spans(np.full_like(start, paragraph), start, start + size)


def _add_other_hard(hard: np.ndarray, cells: Cells) -> Cells:
    """Adds the other hard negative where one is drawn again: only drawn together are they different paragraphs."""
    chosen = np.zeros(hard.shape, dtype=bool)
    chosen[cells] = True
    hard = hard[:, :MAX_HARD]
    chosen[:, :MAX_HARD] |= (chosen[:, :MAX_HARD] & hard).any(axis=1, keepdims=True) & hard
    return np.nonzero(chosen)  # type: ignore[return-value]
