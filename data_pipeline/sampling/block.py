"""Spans of sentences, and blocks: the paragraphs of a few shards as flat arrays, and which of them are anchors."""

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
    """Holds runs of whole sentences: ``[start, end)`` of sentences in a usable paragraph; arrays of one shape.

    hole_start, hole_end: the sentences ``[hole_start, hole_end)`` of the run are left out; None where no run has a hole
    """

    paragraph: np.ndarray
    start: np.ndarray
    end: np.ndarray
    hole_start: np.ndarray | None = None
    hole_end: np.ndarray | None = None

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> "Spans":
        """Applies ``change`` to each array."""
        arrays = (self.paragraph, self.start, self.end, self.hole_start, self.hole_end)
        return Spans(*(None if x is None else change(x) for x in arrays))  # type: ignore[arg-type]

    def __getitem__(self, rows: Index) -> "Spans":
        return self.map(lambda array: array[rows])

    def put(self, rows: Index, spans: "Spans") -> None:
        """Replaces these rows by the spans, in place."""
        for name in ("paragraph", "start", "end", "hole_start", "hole_end"):
            if getattr(self, name) is not None:
                getattr(self, name)[rows] = getattr(spans, name)


def join_columns(first: Spans, rest: Spans) -> Spans:
    """Joins Spans ``[n]`` and ``[n, k]``, or two of ``[n]``, as columns. Both have holes, or neither has."""
    arrays = ("paragraph", "start", "end", "hole_start", "hole_end")
    pairs = ((getattr(first, name), getattr(rest, name)) for name in arrays)
    return Spans(*(None if x is None else np.column_stack([x, y]) for x, y in pairs))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ClassIndex:
    """Lists the paragraphs that belong to each of K classes, in the block's order.

    paragraphs  those of class 0, then those of class 1, ...; classes may overlap
    first       [K]         where those of each class begin in ``paragraphs``
    total       [K]         how many there are
    before      [K, P + 1]  how many of them come before each paragraph: a paragraph's position in its class
    """

    paragraphs: np.ndarray
    first: np.ndarray
    total: np.ndarray
    before: np.ndarray

    @staticmethod
    def of(member: np.ndarray) -> "ClassIndex":
        """Indexes ``member``, ``[K, P]``: whether a paragraph is of a class."""
        before = np.zeros((len(member), member.shape[1] + 1), dtype=np.int32)
        np.cumsum(member, axis=1, out=before[:, 1:])
        total = before[:, -1].astype(np.int64)
        paragraphs = np.nonzero(member)[1].astype(np.int32)
        return ClassIndex(paragraphs, np.cumsum(total) - total, total, before)


class Block:
    """Holds the paragraphs of one split in some shards, in the order of shard, document and paragraph.

    Each of them can be a negative; only the usable ones are anchors.

    shards          the shards' arrays
    shard_number    [P]     which of them a paragraph lies in
    paragraph       [P]     its number in that shard
    num_sentences   [P]
    document        [P]     dense numbers, 0 .. D
    document_first  [D + 1] the document's first paragraph
    anchors         [U]     the block's usable paragraphs, ascending
    """

    def __init__(self, shards: list[Shard], split: str, usable: UsableRule) -> None:
        self.shards = shards
        parts = [find_usable(shard, split, _has_text) for shard in shards]
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
        per_document = np.diff(self.document_first)[self.document]
        self.anchors = np.flatnonzero(usable(self.num_sentences, per_document)).astype(np.int32)
        self._made: dict[Callable[[Block], Any], Any] = {}

    def make_once(self, make: Callable[["Block"], Made]) -> Made:
        """Returns ``make(block)``, made at the first call and kept: such as an index that a sampler needs."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def take_whole(self, paragraphs: np.ndarray) -> Spans:
        """Returns whole paragraphs as spans."""
        return Spans(paragraphs, np.zeros_like(paragraphs), self.num_sentences[paragraphs].astype(paragraphs.dtype))

    def find_runs(self, spans: Spans) -> list[tuple[np.ndarray, np.ndarray]]:
        """Finds where in its shard each span's tokens start and end: one run, or two where spans have holes."""
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
        """Finds which of the block's shards each paragraph lies in, and its document's row there."""
        rows = np.empty(paragraphs.shape, dtype=np.int64)
        for shard, places in self.split_by_shard(paragraphs):
            rows[places] = np.searchsorted(shard.document_starts, self.paragraph[paragraphs[places]], side="right") - 1
        return self.shard_number[paragraphs], rows

    def locate(self, paragraph: np.ndarray | int) -> tuple[Shard, int, int]:
        """Returns the paragraph's shard, its document's row there, and its number within the document."""
        number, row = (int(array[0]) for array in self.find_rows(np.atleast_1d(paragraph)))
        shard = self.shards[number]
        return shard, row, int(self.paragraph[paragraph] - shard.document_starts[row])


def _has_text(num_sentences: np.ndarray, num_paragraphs: np.ndarray) -> np.ndarray:
    return num_sentences > 0


def find_usable(shard: Shard, split: str, usable: UsableRule) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the split's usable paragraphs in a shard, and the document row of each."""
    per_document = np.diff(shard.document_starts)
    rows = np.repeat(np.arange(len(per_document), dtype=np.int32), per_document)
    in_split = shard.held_out[rows] == SPLITS.index(split)
    chosen = np.flatnonzero(in_split & usable(np.diff(shard.paragraph_starts), per_document[rows]))
    return chosen, rows[chosen]
