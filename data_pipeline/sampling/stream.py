"""Pairs of a corpus as packed batches, by index: ``stream.batch(first, count)`` is a pure function."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import PairTemplate

from .anchors import get_usable_counts, open_block
from .batch import Batch, concatenate
from .block import Block
from .mixture import Mixture
from .order import BLOCK_ANCHORS, Order
from .packing import MIN_TEXT_TOKENS, copy_texts, cut_longest_first, lay_out
from .pairs import POSITIVE, Objective
from .random_bits import draw_random_bits
from .spans import Spans

CHUNK = 4096  # pairs made at a time, which bounds the memory that making them takes


@dataclass(frozen=True)
class PairRows:
    """Pairs of one objective that lie in one block: Spans A and B, kinds and ascending indices, ``[n]``.

    part: which objective of the mixture
    """

    block: Block
    a: Spans
    b: Spans
    kinds: np.ndarray
    index: np.ndarray
    part: int


class Masking(Protocol):
    @property
    def noise(self) -> bool: ...  # whether the token loss draws replacements

    @property
    def numbers(self) -> int: ...  # random numbers of 32 bits that a token owns

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


class PairStream:
    """Endless pairs of one split of a corpus.

    Args:
        corpus, mixture, template: what to read, how to pair, how the tokenizer joins two texts
        seed:       of order, spans and masks
        split:      "train" or "validation"
        max_length: tokens of a pair, special tokens included; longer pairs are cut longest-first
        masking:    the token objective, or None for pairs as they are

    Raises KinspanError where the split cannot give what an objective needs.
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
        self.mixture, self.template, self.seed, self.masking = mixture, template, seed, masking
        self.max_length = mixture.max_length if max_length is None else max_length
        if self.max_length < template.num_special + MIN_TEXT_TOKENS:
            raise KinspanError(
                f"--max_length {self.max_length} is too short for two texts and {template.num_special} special "
                f"tokens: use at least {template.num_special + MIN_TEXT_TOKENS}"
            )
        if self.max_length >= 2**31:
            raise KinspanError(f"--max_length {self.max_length}: must be below 2^31")
        self.orders = [_order(corpus, objective, seed, split, block_anchors) for objective in mixture.objectives]
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple, Block] = OrderedDict()
        self._open = partial(open_block, corpus, split=split)

    @property
    def epoch_pairs(self) -> int:
        """Pairs after which an objective has used all its anchors; of several, the one that is done first."""
        mixture, total = self.mixture, sum(self.mixture.weights)
        own = (
            order.epoch_anchors * objective.pairs_per_anchor * total // weight
            for order, objective, weight in zip(self.orders, mixture.objectives, mixture.weights, strict=True)
        )
        return min(own)

    def pairs(self, first: int, count: int) -> Iterator[PairRows]:
        """Examples ``first .. first + count`` as spans, objective by objective, cut where a block ends."""
        for part in range(len(self.orders)):
            yield from self._pairs_of(part, *self.mixture.own_pairs(part, first, first + count))

    def _pairs_of(self, part: int, first: int, end: int) -> Iterator[PairRows]:
        """The part's own pairs ``first .. end``."""
        objective = self.mixture.objectives[part]
        group = objective.pairs_per_anchor
        first_anchor = first // group
        for segment in self.orders[part].segments(first_anchor, -(-end // group) - first_anchor):
            block = self._block(segment.shards, objective)
            purpose, n = f"pairs/{objective.name}", len(segment.anchors)
            words = draw_random_bits(self.seed, purpose, segment.first_anchor, n, objective.num_words)
            pairs = objective.checked(objective.sample(block, segment.anchors, words), n)
            start = segment.first_anchor * group
            rows = slice(max(first - start, 0), min(end - start, n * group))
            index = self.mixture.index_of(part, np.arange(start + rows.start, start + rows.stop))
            a, b = (spans.map(lambda x: x.ravel()[rows]) for spans in (pairs.a, pairs.b))  # noqa: B023
            yield PairRows(block, a, b, pairs.kind.ravel()[rows], index, part)

    def _block(self, shards: tuple[int, ...], objective: Objective) -> Block:
        """The block of these shards; objectives that use the same paragraphs share it."""
        key = (shards, objective.usable)
        with self._lock:  # two prefetching threads must not both build a block
            if key not in self._blocks:
                self._blocks[key] = self._open(shards, objective=objective)
                if len(self._blocks) > 2 * len(self.orders):
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(key)
            return self._blocks[key]

    def batch(self, first: int, count: int) -> Batch:
        """Examples ``first .. first + count``, packed and masked."""
        parts = [
            self._pack(list(self.pairs(start, min(CHUNK, first + count - start))), start, first + count)
            for start in range(first, first + count, CHUNK)
        ]
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def _pack(self, parts: list[PairRows], first: int, end: int) -> Batch:
        """One chunk: the lengths of all pairs, then every pair's tokens to their place, objective by objective."""
        template, n = self.template, min(CHUNK, end - first)
        a_len, b_len = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        kinds, part = np.empty(n, dtype=np.int8), np.empty(n, dtype=np.int8)
        runs = [(rows, rows.block.token_runs(rows.a), rows.block.token_runs(rows.b)) for rows in parts]
        for rows, a_runs, b_runs in runs:
            at = rows.index - first
            a_len[at] = sum(stop - start for start, stop in a_runs)
            b_len[at] = sum(stop - start for start, stop in b_runs)
            kinds[at], part[at] = rows.kinds, rows.part
        a_len, b_len = cut_longest_first(a_len, b_len, self.max_length - template.num_special)
        row = lay_out(template, a_len, b_len)
        for rows, a_runs, b_runs in runs:
            at = rows.index - first
            copy_texts(row.ids, row.a_at[at], a_len[at], rows.block, rows.a.paragraph, a_runs)
            copy_texts(row.ids, row.b_at[at], b_len[at], rows.block, rows.b.paragraph, b_runs)
        masked = self._mask(row.ids, row.starts, row.special, first)
        labels = (kinds == POSITIVE).astype(np.int8)
        index = np.arange(first, first + n)
        return Batch(row.ids, row.types, row.positions, row.starts, *masked, labels, kinds, part, index)

    def _mask(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, first: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masks ``ids`` in place; positions, labels and noise as of Batch."""
        nothing = np.zeros(0, dtype=np.int64)
        if self.masking is None:
            return nothing, nothing, np.zeros(0)
        n = len(starts) - 1
        num_words = -(-self.max_length // 8) * 4  # two numbers a word
        words = draw_random_bits(self.seed, "mask", first, n, num_words * self.masking.numbers)
        positions, labels = self.masking.apply(ids, starts, special, words)
        noise = np.zeros(0)
        if self.masking.noise:
            numbers = draw_random_bits(self.seed, "replacements", first, n, num_words).view(np.uint32)
            pair = np.searchsorted(starts, positions, side="right") - 1
            noise = numbers[pair, positions - starts[pair]] / 2**32
        return positions.astype(np.int64), labels.astype(np.int64), noise


def _order(corpus: Corpus, objective: Objective, seed: int, split: str, block_anchors: int) -> Order:
    anchors, documents = get_usable_counts(corpus, objective, split)
    if not sum(anchors):
        raise KinspanError(
            f"corpus {corpus.folder} has no usable {split} paragraph for {objective.name}, which needs "
            f"{objective.needs}: prepare more documents"
        )
    return Order(anchors, documents, seed, block_anchors, objective.name)
