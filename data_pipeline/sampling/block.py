"""Defines spans of sentences, and blocks: the paragraphs of a few shards as flat arrays, and the anchors among them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from data_pipeline.corpus import SPLITS, Shard

Made = TypeVar("Made")
Index = np.ndarray | slice | int | tuple[np.ndarray, ...]  # into an array
# (sentences of each paragraph [P], paragraphs in its document [P]) -> which paragraphs can be anchors [P]
UsableRule = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Spans:
    """Holds runs of whole sentences, ``[start, end)``, each in a paragraph of a block. All arrays have one shape.

    hole_start, hole_end: the sentences ``[hole_start, hole_end)`` of the run are left out; None if no run has a hole
    """

    paragraph: np.ndarray
    start: np.ndarray
    end: np.ndarray
    hole_start: np.ndarray | None = None
    hole_end: np.ndarray | None = None

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> "Spans":
        """Applies ``change`` to each array."""
        return Spans(*(None if x is None else change(x) for x in vars(self).values()))  # type: ignore[arg-type]

    def __getitem__(self, rows: Index) -> "Spans":
        return self.map(lambda array: array[rows])

    def put(self, rows: Index, spans: "Spans") -> None:
        """Replaces these rows by the spans, in place."""
        for name, array in vars(self).items():
            if array is not None:
                array[rows] = getattr(spans, name)


def join_columns(first: Spans, rest: Spans) -> Spans:
    """Joins Spans ``[n]`` and ``[n, k]``, or two of ``[n]``, as columns. Both have holes, or neither has."""
    pairs = zip(vars(first).values(), vars(rest).values(), strict=True)
    return Spans(*(None if x is None else np.column_stack([x, y]) for x, y in pairs))  # type: ignore[arg-type]


class ClassIndex:
    """Lists the paragraphs that belong to each of K classes, in the block's order.

    member      [K, P]      whether a paragraph belongs to a class; classes may overlap
    paragraphs  those of class 0, then those of class 1, ...
    first       [K]         where each class begins in ``paragraphs``
    total       [K]         how many paragraphs each class has
    before      [K, P + 1]  how many of a class come before each paragraph: a member's index in its class
    """

    def __init__(self, member: np.ndarray) -> None:
        self.before = np.zeros((len(member), member.shape[1] + 1), dtype=np.int32)
        np.cumsum(member, axis=1, out=self.before[:, 1:])
        self.total = self.before[:, -1].astype(np.int64)
        self.paragraphs = np.nonzero(member)[1].astype(np.int32)
        self.first = np.cumsum(self.total) - self.total


class Block:
    """Holds the paragraphs of one split in some shards, in the order of shard, document and paragraph.

    Every paragraph can be a negative; only the usable ones are anchors.

    shards          the shards' arrays
    shard_number    [P]     the index, in ``shards``, of each paragraph's shard
    paragraph       [P]     its index in that shard
    num_sentences   [P]
    document        [P]     the number of its document, 0 .. D - 1
    document_first  [D + 1] the first paragraph of each document, and P
    anchors         [U]     indices of the usable paragraphs, ascending
    """

    def __init__(self, shards: list[Shard], split: str, usable: UsableRule) -> None:
        self.shards = shards
        parts = [find_usable(shard, split, has_text) for shard in shards]
        self.shard_number = np.repeat(np.arange(len(shards), dtype=np.int16), [len(p) for p, _ in parts])
        self.paragraph = np.concatenate([p for p, _ in parts]).astype(np.int32)
        self.num_sentences = np.concatenate(
            [np.diff(s.paragraph_starts)[p] for s, (p, _) in zip(shards, parts, strict=True)]
        ).astype(np.int32)
        new_document = np.ones(len(self.paragraph), dtype=bool)
        rows = np.concatenate([r for _, r in parts])
        new_document[1:] = (np.diff(rows) != 0) | (np.diff(self.shard_number) != 0)
        self.document = (np.cumsum(new_document) - 1).astype(np.int32)
        self.document_first = np.append(np.flatnonzero(new_document), len(rows)).astype(np.int32)
        document_size = np.diff(self.document_first)[self.document]
        self.anchors = np.flatnonzero(usable(self.num_sentences, document_size)).astype(np.int32)
        self._cached: dict[Callable[[Block], Any], Any] = {}

    def make_once(self, make: Callable[["Block"], Made]) -> Made:
        """Returns ``make(block)``, computed at the first call and cached, such as an index that a sampler needs."""
        if make not in self._cached:
            self._cached[make] = make(self)
        return self._cached[make]

    def take_whole(self, paragraphs: np.ndarray) -> Spans:
        """Returns whole paragraphs as spans."""
        return Spans(paragraphs, np.zeros_like(paragraphs), self.num_sentences[paragraphs].astype(paragraphs.dtype))

    def find_runs(self, spans: Spans) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the start and end, in its shard, of each span's tokens: one run, or two if spans have holes."""
        if spans.hole_start is None or spans.hole_end is None:
            return [self._find_token_bounds(spans.paragraph, spans.start, spans.end)]
        before = self._find_token_bounds(spans.paragraph, spans.start, spans.hole_start)
        return [before, self._find_token_bounds(spans.paragraph, spans.hole_end, spans.end)]

    def _find_token_bounds(
        self, paragraph: np.ndarray, first: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        start = np.empty(paragraph.shape, dtype=np.int64)
        end = np.empty_like(start)
        for shard, rows in self.split_by_shard(paragraph):
            base = shard.paragraph_starts[self.paragraph[paragraph[rows]]]
            start[rows] = shard.sentence_starts[base + first[rows]]
            end[rows] = shard.sentence_starts[base + last[rows]]
        return start, end

    def count_tokens(self, spans: Spans) -> np.ndarray:
        return sum(end - start for start, end in self.find_runs(spans))  # type: ignore[return-value]

    def split_by_shard(self, paragraphs: np.ndarray) -> list[tuple[Shard, Index]]:
        """Returns ``(shard, rows)`` for each shard in which some of ``paragraphs`` lie."""
        if len(self.shards) == 1:
            return [(self.shards[0], slice(None))]
        numbers = self.shard_number[paragraphs]
        return [(self.shards[k], np.nonzero(numbers == k)) for k in np.unique(numbers).tolist()]

    def read_tokens(self, spans: Spans) -> np.ndarray:
        """Returns the token ids of one span, whose arrays have no dimension."""
        shard = self.shards[self.shard_number[spans.paragraph]]
        runs = self.find_runs(spans.map(np.atleast_1d))
        return np.concatenate([shard.tokens[start[0] : end[0]] for start, end in runs])

    def find_rows(self, paragraphs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the index of each paragraph's shard, and the row of its document in that shard."""
        rows = np.empty(paragraphs.shape, dtype=np.int64)
        for shard, selected in self.split_by_shard(paragraphs):
            in_shard = self.paragraph[paragraphs[selected]]
            rows[selected] = np.searchsorted(shard.document_starts, in_shard, side="right") - 1
        return self.shard_number[paragraphs], rows

    def locate(self, paragraph: np.ndarray | int) -> tuple[Shard, int, int]:
        """Returns the paragraph's shard, its document's row there, and its index within the document."""
        number, row = (int(array[0]) for array in self.find_rows(np.atleast_1d(paragraph)))
        shard = self.shards[number]
        return shard, row, int(self.paragraph[paragraph] - shard.document_starts[row])


def has_text(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    """Accepts all paragraphs, and all questions of a view, which has only usable ones."""
    return num_sentences > 0


def find_usable(shard: Shard, split: str, usable: UsableRule) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the split's usable paragraphs in a shard, and the row of each one's document."""
    rows = np.repeat(np.arange(len(shard.held_out), dtype=np.int32), np.diff(shard.document_starts))
    num_sentences = np.diff(shard.paragraph_starts)  # none in a paragraph without a known character
    document_sizes = np.bincount(rows[num_sentences > 0], minlength=len(shard.held_out))
    in_split = (num_sentences > 0) & (shard.held_out[rows] == SPLITS.index(split))
    chosen = np.flatnonzero(in_split & usable(num_sentences, document_sizes[rows]))
    return chosen, rows[chosen]
