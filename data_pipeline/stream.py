"""Pairs of a corpus as packed batches, by index: ``stream.batch(first, count)`` is a pure function."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from .block import Block, Spans, open_block
from .corpus import Corpus
from .errors import KinspanError
from .mixture import Mixture
from .order import BLOCK_ANCHORS, PAIRS_PER_ANCHOR, Order
from .pairs import POSITIVE
from .random_words import random_words
from .tokenizers import PairTemplate

CHUNK = 4096  # pairs made at a time, which bounds the memory that making them takes
MIN_TEXT_TOKENS = 12


@dataclass(frozen=True)
class Batch:
    """n pairs of T tokens in all, packed one after another in a row.

    input_ids        [T] int32    masked where masking was asked for
    token_type_ids   [T] int32
    position_ids     [T] int32    0 at each pair's first token
    starts           [n + 1] int32  where each pair begins (``cu_seqlens``)
    masked_positions [M] int64    chosen for the token loss, ascending
    masked_labels    [M] int64    the ids that stood there
    labels           [n] int8     1 where A and B belong together
    kinds            [n] int8     POSITIVE, HARD or EASY
    index            [n] int64    the example's number in the global order
    part             [n] int8     which objective of the mixture the pair is of
    noise            [M] float64  uniform, one a masked position; [0] where the token loss needs none
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    position_ids: np.ndarray
    starts: np.ndarray
    masked_positions: np.ndarray
    masked_labels: np.ndarray
    labels: np.ndarray
    kinds: np.ndarray
    index: np.ndarray
    part: np.ndarray
    noise: np.ndarray

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class PairRows:
    """The pairs of consecutive examples that lie in one block: Spans A and B, kinds and indices, ``[n]``."""

    block: Block
    a: Spans
    b: Spans
    kinds: np.ndarray
    index: np.ndarray


class Masking(Protocol):
    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


class PairStream:
    """Endless pairs of one split of a corpus.

    Args:
        corpus, objective, template: what to read, how to pair, how the tokenizer joins two texts
        seed:       of order, spans and masks
        split:      "train" or "validation"
        max_length: tokens of a pair, special tokens included; longer pairs are cut longest-first
        masking:    the token objective, or None for pairs as they are

    Raises KinspanError where the split cannot give what the objective needs.
    """

    def __init__(
        self,
        corpus: Corpus,
        mixture: Mixture,
        template: PairTemplate,
        seed: int,
        split: str = "train",
        max_length: int | None = None,
        masking: Masking | None = None,
        block_anchors: int = BLOCK_ANCHORS,
    ) -> None:
        self.mixture, self.objective, objective = mixture, mixture.objective, mixture.objective
        self.template, self.seed, self.masking = template, seed, masking
        self.max_length = objective.max_length if max_length is None else max_length
        if self.max_length < template.num_special + MIN_TEXT_TOKENS:
            raise KinspanError(
                f"--max_length {self.max_length} is too short for two texts and {template.num_special} special "
                f"tokens: use at least {template.num_special + MIN_TEXT_TOKENS}"
            )
        anchors, documents = corpus.usable(objective.name, split)
        if not sum(anchors):
            raise KinspanError(
                f"corpus {corpus.folder} has no usable {split} paragraph for {objective.name}, which needs "
                f"{objective.needs}: prepare more documents"
            )
        self.order = Order(anchors, documents, seed, block_anchors)
        self._lock = threading.Lock()
        self._block = lru_cache(maxsize=2)(lambda shards: open_block(corpus, shards, split, objective))

    @property
    def epoch_pairs(self) -> int:
        return self.order.epoch_anchors * PAIRS_PER_ANCHOR

    def pairs(self, first: int, count: int) -> Iterator[PairRows]:
        """Examples ``first .. first + count`` as spans, cut where a block ends."""
        first_anchor, end_anchor = first // PAIRS_PER_ANCHOR, -(-(first + count) // PAIRS_PER_ANCHOR)
        for segment in self.order.segments(first_anchor, end_anchor - first_anchor):
            with self._lock:  # two prefetching threads must not both build a block
                block = self._block(segment.shards)
            purpose, n = f"pairs/{self.objective.name}", len(segment.anchors)
            words = random_words(self.seed, purpose, segment.first_anchor, n, self.objective.num_words)
            pairs = self.objective.sample(block, segment.anchors, words)
            start = segment.first_anchor * PAIRS_PER_ANCHOR
            index = np.arange(start, start + n * PAIRS_PER_ANCHOR)
            rows = slice(max(first - start, 0), min(first + count - start, len(index)))
            a, b = (Spans(*(f.ravel()[rows] for f in (s.paragraph, s.start, s.end))) for s in (pairs.a, pairs.b))
            yield PairRows(block, a, b, pairs.kind.ravel()[rows], index[rows])

    def batch(self, first: int, count: int) -> Batch:
        """Examples ``first .. first + count``, packed and masked."""
        parts = [
            self._pack(rows)
            for start in range(first, first + count, CHUNK)
            for rows in self.pairs(start, min(CHUNK, first + count - start))
        ]
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def _pack(self, rows: PairRows) -> Batch:
        template, n = self.template, len(rows.index)
        (a_start, a_end), (b_start, b_end) = rows.block.token_bounds(rows.a), rows.block.token_bounds(rows.b)
        a_len, b_len = cut_longest_first(a_end - a_start, b_end - b_start, self.max_length - template.num_special)
        first_len = len(template.head) + a_len + len(template.middle)  # token type 0
        second_len = b_len + len(template.tail)
        starts = np.zeros(n + 1, dtype=np.int32)
        np.cumsum(first_len + second_len, out=starts[1:])
        ids = np.empty(starts[-1], dtype=np.int32)
        special = np.zeros(starts[-1], dtype=bool)
        for piece, at in (
            (template.head, starts[:-1]),
            (template.middle, starts[:-1] + len(template.head) + a_len),
            (template.tail, starts[1:] - len(template.tail)),
        ):
            for offset, token in enumerate(piece):
                ids[at + offset], special[at + offset] = token, True
        a_at, b_at = starts[:-1] + len(template.head), starts[:-1] + first_len
        for shard, own in rows.block.by_shard(rows.a.paragraph):
            copy_runs(ids, a_at[own], shard.tokens, a_start[own], a_len[own])
        for shard, own in rows.block.by_shard(rows.b.paragraph):
            copy_runs(ids, b_at[own], shard.tokens, b_start[own], b_len[own])
        lengths = np.diff(starts)
        positions = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], lengths)
        segments = np.tile(np.array([0, template.type_of_second], dtype=np.int32), n)
        types = np.repeat(segments, np.column_stack([first_len, second_len]).ravel())
        masked = self._mask(ids, starts, special, rows.index)
        labels = (rows.kinds == POSITIVE).astype(np.int8)
        part = np.zeros(n, dtype=np.int8)
        noise = self._noise(starts, masked[0], rows.index)
        return Batch(ids, types, positions, starts, *masked, labels, rows.kinds, rows.index, part, noise)

    def _noise(self, starts: np.ndarray, positions: np.ndarray, index: np.ndarray) -> np.ndarray:
        if not getattr(self.masking, "noise", False):
            return np.zeros(0)
        words = random_words(self.seed, "noise", int(index[0]), len(index), -(-self.max_length // 4) * 4)
        pair = np.searchsorted(starts, positions, side="right") - 1
        return (words[pair, positions - starts[pair]] >> np.uint64(11)) * 2.0**-53

    def _mask(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.masking is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        num_words = -(-self.max_length // 8) * 4  # two tokens a word
        words = random_words(self.seed, "mask", int(index[0]), len(index), num_words)
        positions, labels = self.masking.apply(ids, starts, special, words)
        return positions.astype(np.int64), labels.astype(np.int64)


def cut_longest_first(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B cut to ``room`` tokens together, as ``truncation="longest_first"`` does it.

    The longer is cut to the shorter, then both alike; the odd token goes to the longer side, on a tie to B.
    """
    half = room // 2
    shorter = np.minimum(a, b)
    # Where the shorter fits in half the room, the longer gets the rest; else they share, the odd token above.
    small = np.where(shorter <= half, shorter, half)
    large = np.minimum(np.maximum(a, b), room - small)
    return np.where(a > b, large, small), np.where(a > b, small, large)


def copy_runs(out: np.ndarray, at: np.ndarray, source: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
    """``out[at[k] : at[k] + length[k]] = source[start[k] : start[k] + length[k]]`` for every k, vectorised."""
    before = np.cumsum(length) - length
    counter = np.arange(int(length.sum()))
    out[counter + np.repeat(at - before, length)] = source[counter + np.repeat(start - before, length)]


def concatenate(parts: list[Batch]) -> Batch:
    """Batches one after another, as one."""
    tokens = np.cumsum([0] + [p.num_tokens for p in parts])
    joined = {
        name: np.concatenate([getattr(p, name) for p in parts])
        for name in Batch.__dataclass_fields__
        if name not in ("starts", "masked_positions")
    }
    starts = [p.starts[:-1] + t for p, t in zip(parts, tokens, strict=False)] + [tokens[-1:]]
    masked = np.concatenate([p.masked_positions + t for p, t in zip(parts, tokens, strict=False)])
    return Batch(starts=np.concatenate(starts).astype(np.int32), masked_positions=masked, **joined)
