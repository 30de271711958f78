"""A block: the usable paragraphs of a few shards, as flat arrays that samplers index."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .corpus import SPLITS, Corpus, Shard
from .pairs import Objective


@dataclass(frozen=True)
class Spans:
    """Runs of whole sentences: ``[start, end)`` of sentences in a usable paragraph; arrays of one shape."""

    paragraph: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __getitem__(self, rows: Any) -> "Spans":
        return Spans(self.paragraph[rows], self.start[rows], self.end[rows])


@dataclass(frozen=True)
class LongEnough:
    """For each count c = 0 .. most: the usable paragraphs of at least c sentences, in the block's order.

    paragraphs  those of count 0, then those of count 1, ...
    first       [most + 1]         where those of count c begin in ``paragraphs``
    total       [most + 1]         how many there are
    before      [most + 1, U + 1]  how many of them come before each paragraph: a paragraph's rank
    """

    paragraphs: np.ndarray
    first: np.ndarray
    total: np.ndarray
    before: np.ndarray

    @staticmethod
    def of(num_sentences: np.ndarray, most: int) -> "LongEnough":
        enough = num_sentences >= np.arange(most + 1, dtype=np.int32)[:, None]
        before = np.zeros((most + 1, len(num_sentences) + 1), dtype=np.int32)
        np.cumsum(enough, axis=1, out=before[:, 1:])
        total = before[:, -1].astype(np.int64)
        paragraphs = np.nonzero(enough)[1].astype(np.int32)
        return LongEnough(paragraphs, np.cumsum(total) - total, total, before)


class Block:
    """The usable paragraphs of one split in some shards, in the order of shard, document and paragraph.

    shard_number    [U]     which of ``shards`` holds the paragraph
    paragraph       [U]     its number in that shard
    num_sentences   [U]
    document        [U]     dense numbers, 0 .. D
    document_first  [D + 1] the document's first usable paragraph
    """

    def __init__(self, shards: list[Shard], split: str, objective: Objective) -> None:
        self.shards = shards
        parts = [usable_paragraphs(shard, split, objective) for shard in shards]
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
        self._long_enough: dict[int, LongEnough] = {}

    def long_enough(self, most: int) -> LongEnough:
        if most not in self._long_enough:
            self._long_enough[most] = LongEnough.of(self.num_sentences, most)
        return self._long_enough[most]

    def token_bounds(self, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of each span in its shard's tokens, ``[n]`` each."""
        start = np.empty(len(spans.paragraph), dtype=np.int64)
        end = np.empty_like(start)
        for shard, rows in self.by_shard(spans.paragraph):
            first = shard.paragraph_starts[self.paragraph[spans.paragraph[rows]]]
            start[rows] = shard.sentence_starts[first + spans.start[rows]]
            end[rows] = shard.sentence_starts[first + spans.end[rows]]
        return start, end

    def by_shard(self, paragraphs: np.ndarray) -> list[tuple[Shard, np.ndarray | slice]]:
        """``(shard, rows)`` for each shard that some of ``paragraphs`` lie in."""
        if len(self.shards) == 1:
            return [(self.shards[0], slice(None))]
        numbers = self.shard_number[paragraphs]
        return [(self.shards[k], np.flatnonzero(numbers == k)) for k in np.unique(numbers).tolist()]

    def tokens_of(self, paragraph: Any, start: Any, end: Any) -> np.ndarray:
        """The ids of one span, a view of the shard."""
        shard = self.shards[self.shard_number[paragraph]]
        first = shard.paragraph_starts[self.paragraph[paragraph]]
        return shard.tokens[shard.sentence_starts[first + start] : shard.sentence_starts[first + end]]

    def locate(self, paragraph: Any) -> tuple[Shard, int, int]:
        """The paragraph's shard, its document's row there, and its number within the document."""
        shard = self.shards[self.shard_number[paragraph]]
        number = int(self.paragraph[paragraph])
        row = int(np.searchsorted(shard.document_starts, number, side="right")) - 1
        return shard, row, number - int(shard.document_starts[row])


def usable_paragraphs(shard: Shard, split: str, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the split's usable paragraphs in a shard, and the document row of each."""
    per_document = np.diff(shard.document_starts)
    rows = np.repeat(np.arange(len(per_document), dtype=np.int32), per_document)
    ours = shard.held_out[rows] == SPLITS.index(split)
    usable = np.flatnonzero(ours & objective.usable(np.diff(shard.paragraph_starts)))
    return usable, rows[usable]


def open_block(corpus: Corpus, shard_numbers: tuple[int, ...], split: str, objective: Objective) -> Block:
    return Block([corpus.shard(n) for n in shard_numbers], split, objective)
