"""Gives pairs of a corpus as packed batches, by index: ``stream.batch(first, count)`` is a pure function."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.tokenizers import PairTemplate

from .anchors import get_usable_counts, open_block
from .batch import Batch, concatenate
from .block import Block, Spans
from .block_cache import BlockCache
from .mixture import Mixture, MixturePart
from .order import BLOCK_ANCHORS, MIN_DOCUMENTS, VALIDATION_ANCHORS, Order, TooFewDocuments
from .packing import MIN_TEXT_TOKENS, PackedRow, copy_text, cut_longest_first, hash_texts, lay_out, lay_out_separately
from .pairs import POSITIVE
from .random_bits import draw_random_bits
from .texts import find_block_groups

ROUND_ROBIN_ANCHORS = 100_000  # of a part per epoch in round robin; in all by Rücklé et al., 2020, section 3.1
Runs = list[tuple[np.ndarray, np.ndarray]]  # see Block.find_runs
CHUNK = 4096  # pairs made at a time; bounds memory


@dataclass(frozen=True)
class PairRows:
    """Holds n pairs of one part of the mixture, from one block.

    labels: ``[n]`` bools: what the pair loss learns
    index:  ``[n]`` the pairs' indices in the global order, ascending
    part:   the part's index in the mixture
    shards: the numbers, in the corpus, of the block's shards
    """

    block: Block
    texts: tuple[Spans, ...]
    kinds: np.ndarray
    labels: np.ndarray
    index: np.ndarray
    part: int
    shards: tuple[int, ...]


class Masking(Protocol):
    """Hides tokens, as objectives.mlm.MaskedLM does."""

    @property
    def draws_noise(self) -> bool: ...  # whether the token loss draws replacements

    @property
    def numbers_per_token(self) -> int: ...  # how many random 32-bit numbers a token owns

    def apply(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, random_bits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


class PairStream:
    """Gives endless pairs of one split, by index.

    template:   how the tokenizer joins the texts of a pair or, for a bi-encoder, encodes a text alone
    max_length: maximum number of tokens of a pair or, for a bi-encoder, of a text, special tokens included; longer
                pairs are cut longest-first
    masking:    the token objective, or None for unmasked pairs
    permute_labels: shuffles each anchor's labels among its pairs, as a control for studies: the number of positives
                stays, their meaning is lost, and kinds are unchanged

    Raises TooFewDocuments if the split lacks what an objective needs, and KinspanError for a wrong ``max_length``, or a
    cache that is too small for a remote corpus.
    """

    def __init__(
        self,
        mixture: Mixture,
        *,
        template: PairTemplate,
        seed: int,
        split: str = "train",
        max_length: int | None = None,
        masking: Masking | None = None,
        permute_labels: bool = False,
        block_anchors: int = BLOCK_ANCHORS,
    ) -> None:
        self.mixture, self.template, self.seed, self.masking, self.split = mixture, template, seed, masking, split
        self.permute_labels = permute_labels
        self.max_length = mixture.max_length if max_length is None else max_length
        if self.max_length < template.num_special + MIN_TEXT_TOKENS:
            raise KinspanError(f"--max_length {self.max_length}: at least {template.num_special + MIN_TEXT_TOKENS}")
        if self.max_length >= 2**31:
            raise KinspanError(f"--max_length {self.max_length}: must be below 2^31")
        self.num_texts = mixture.parts[0].objective.num_texts
        parts = enumerate(mixture.parts)
        self.orders = {n: _order_anchors(part, seed, split, block_anchors) for n, part in parts if part.weight}
        self._blocks = BlockCache(2 * len(self.orders))  # the current and the next block of each part
        self._require_cache()

    @property
    def separate_texts(self) -> bool:
        """Returns whether the texts of a pair are sequences of their own, as for a bi-encoder."""
        return self.template.num_texts == 1

    @property
    def sequences_per_pair(self) -> int:
        """Returns the number of sequences of a pair, see Batch: one, or one per text for a bi-encoder."""
        return self.num_texts // self.template.num_texts

    @property
    def epoch_pairs(self) -> int:
        """Returns the number of pairs after which the first of the parts has used all its anchors.

        In round robin, returns the pairs of all parts together, with at most ROUND_ROBIN_ANCHORS anchors of each.
        """
        parts, total = self.mixture.parts, sum(self.mixture.weights)
        pairs = {n: parts[n].objective.pairs_per_anchor for n in self.orders}
        if self.mixture.batch:
            return sum(min(order.epoch_anchors, ROUND_ROBIN_ANCHORS) * pairs[n] for n, order in self.orders.items())
        return min(order.epoch_anchors * pairs[n] * total // parts[n].weight for n, order in self.orders.items())

    def pairs(self, first: int, count: int) -> Iterator[PairRows]:
        """Yields examples ``first .. first + count`` as spans, part by part, cut where a block ends."""
        for part in self.orders:
            own_first, own_end = self.mixture.own_pairs(part, first, first + count)
            if own_first < own_end:
                yield from self._sample_part(part, own_first, own_end)

    def _sample_part(self, part_index: int, first: int, end: int) -> Iterator[PairRows]:
        part = self.mixture.parts[part_index]
        objective, pairs_per_anchor = part.objective, part.objective.pairs_per_anchor
        first_anchor = first // pairs_per_anchor
        for segment in self.orders[part_index].segments(first_anchor, -(-end // pairs_per_anchor) - first_anchor):
            purpose, n = f"pairs/{part.key}", len(segment.anchors)
            block = self._blocks.get(*self._plan_block(part, segment.shards))
            ahead = self.orders[part_index].look_ahead(segment.first_anchor + n - 1)
            if ahead is not None:
                self._blocks.fetch_ahead(*self._plan_block(part, ahead))
            random_bits = draw_random_bits(self.seed, purpose, segment.first_anchor, n, objective.num_draws)
            pairs = objective.sample(block, block.anchors[segment.anchors].astype(np.int64), random_bits)
            objective.check(pairs, n)
            labels = pairs.kind == POSITIVE
            if self.permute_labels:
                labels = _permute_rows(labels, self.seed, part.key, segment.first_anchor)
            start = segment.first_anchor * pairs_per_anchor
            rows = slice(max(first - start, 0), min(end - start, n * pairs_per_anchor))
            index = self.mixture.index_of(part_index, np.arange(start + rows.start, start + rows.stop))
            texts = tuple(spans.map(lambda x: x.ravel()[rows]) for spans in pairs.texts)  # noqa: B023
            yield PairRows(
                block, texts, pairs.kind.ravel()[rows], labels.ravel()[rows], index, part_index, segment.shards
            )

    def _plan_block(self, part: MixturePart, shards: tuple[int, ...]) -> tuple[tuple, Callable[[], Block]]:
        """Returns the key of the part's block, which parts with the same paragraphs share, and its builder."""
        key = (part.corpus, shards, part.objective.usable, part.objective.view)
        return key, partial(self._build_block, part, shards)

    def _build_block(self, part: MixturePart, shards: tuple[int, ...]) -> Block:
        """Builds the part's block, and samples once with each objective that shares it, to build its indices."""
        assert part.corpus is not None
        block = open_block(part.corpus, shards, self.split, part.objective)
        for other in self.mixture.parts:
            objective = other.objective
            same = (objective.usable, objective.view) == (part.objective.usable, part.objective.view)
            if other.corpus is part.corpus and same:
                random_bits = draw_random_bits(self.seed, "first pairs of a block", 0, 1, objective.num_draws)
                objective.sample(block, block.anchors[:1].astype(np.int64), random_bits)
        return block

    def _require_cache(self) -> None:
        """Raises KinspanError if the cache of a remote corpus cannot hold what this stream has in use."""
        needs: dict[Corpus, int] = {}
        for number, order in self.orders.items():
            part = self.mixture.parts[number]
            assert part.corpus is not None
            sizes = [shard.bytes for shard in part.corpus.manifest.shards]
            total = sum(size for size, anchors in zip(sizes, order.anchors, strict=True) if anchors)
            needs[part.corpus] = min(needs.get(part.corpus, 0) + order.bound_blocks(sizes), total)
        remote = {corpus: corpus.mirror for corpus in needs if corpus.mirror}
        for cache in {mirror.cache for mirror in remote.values()}:
            sharing = [corpus for corpus, mirror in remote.items() if mirror.cache is cache]
            names = " and ".join(corpus.name for corpus in sharing)
            cache.require(self, sum(needs[corpus] for corpus in sharing), f"{names}, {self.split} documents")

    def batch(self, first: int, count: int) -> Batch:
        """Returns examples ``first .. first + count``, packed and masked."""
        parts = [self._pack(k, min(CHUNK, first + count - k)) for k in range(first, first + count, CHUNK)]
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def count_tokens(self, first: int, count: int) -> np.ndarray:
        """Returns ``batch(first, count).lengths`` without reading tokens."""
        counts = []
        for start in range(first, first + count, CHUNK):
            n = min(CHUNK, first + count - start)
            _, lengths, _ = self._measure(start, n)
            counts.append(sum(self._cut(lengths)) + self.sequences_per_pair * self.template.num_special)
        return np.concatenate(counts)

    def _cut(self, lengths: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Cuts the lengths of the texts, ``[n]`` each, to what ``max_length`` leaves them."""
        room = self.max_length - self.template.num_special
        return tuple(np.minimum(x, room) for x in lengths) if self.separate_texts else cut_longest_first(lengths, room)

    def _measure(self, first: int, n: int) -> tuple[list[PairRows], tuple[np.ndarray, ...], list[list[Runs]]]:
        """Returns the pairs, the length of each text before the cut, and for each part the runs of its texts."""
        parts = list(self.pairs(first, n))
        full_lengths = tuple(np.empty(n, dtype=np.int64) for _ in range(self.num_texts))
        runs = [[rows.block.find_runs(spans) for spans in rows.texts] for rows in parts]
        for rows, text_runs in zip(parts, runs, strict=True):
            for length, bounds in zip(full_lengths, text_runs, strict=True):
                length[rows.index - first] = sum(stop - start for start, stop in bounds)
        return parts, full_lengths, runs

    def _pack(self, first: int, n: int) -> Batch:
        """Packs one chunk: lays out a row by the lengths of all pairs, then copies their tokens, part by part."""
        parts, full_lengths, runs = self._measure(first, n)
        kinds, labels, part = (np.empty(n, dtype=dtype) for dtype in (np.int8, np.int8, np.int16))
        for rows in parts:
            at = rows.index - first
            kinds[at], labels[at], part[at] = rows.kinds, rows.labels, rows.part
        lengths = self._cut(full_lengths)
        row = (lay_out_separately if self.separate_texts else lay_out)(self.template, lengths)
        for rows, text_runs in zip(parts, runs, strict=True):
            at = rows.index - first
            for spans, bounds, start, length in zip(rows.texts, text_runs, row.text_starts, lengths, strict=True):
                copy_text(row.ids, start[at], length[at], rows.block, spans.paragraph, bounds)
        groups = self._make_groups(row, parts, first) if self.separate_texts else np.zeros((0, 2), dtype=np.int64)
        positions, masked_labels, noise = self._mask(row, first * self.sequences_per_pair)
        return Batch(
            input_ids=row.ids,
            token_type_ids=row.types,
            position_ids=row.positions,
            starts=row.starts,
            masked_positions=positions,
            masked_labels=masked_labels,
            noise=noise,
            labels=labels,
            kinds=kinds,
            part=part,
            index=np.arange(first, first + n),
            groups=groups,
        )

    def _make_groups(self, row: PackedRow, parts: list[PairRows], first: int) -> np.ndarray:
        """Returns Batch.groups of a row whose tokens are in place; a question and its duplicates are one document."""
        documents = np.empty(((len(row.starts) - 1) // self.num_texts, self.num_texts), dtype=np.int64)
        for rows in parts:
            source = self.mixture.parts[rows.part].source
            shards = np.array(rows.shards, dtype=np.int64)
            for text, spans in enumerate(rows.texts):
                shard = rows.block.shard_number[spans.paragraph]
                document = rows.block.make_once(find_block_groups)[spans.paragraph]
                documents[rows.index - first, text] = source << 52 | shards[shard] << 32 | document
        return np.column_stack([documents.ravel(), hash_texts(row.ids, row.starts)])

    def _mask(self, row: PackedRow, first_sequence: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masks the row in place; returns its masked_positions, masked_labels and noise, see Batch."""
        nothing = np.zeros(0, dtype=np.int64)
        if self.masking is None:
            return nothing, nothing, np.zeros(0)
        n = len(row.starts) - 1
        num_draws = -(-self.max_length // 8) * 4  # two tokens share a 64-bit draw; a multiple of 4
        random_bits = draw_random_bits(self.seed, "mask", first_sequence, n, num_draws * self.masking.numbers_per_token)
        positions, labels = self.masking.apply(row.ids, row.starts, row.special, random_bits)
        noise = np.zeros(0)
        if self.masking.draws_noise:
            numbers = draw_random_bits(self.seed, "replacements", first_sequence, n, num_draws).view(np.uint32)
            sequence = np.searchsorted(row.starts, positions, side="right") - 1
            noise = numbers[sequence, positions - row.starts[sequence]] / 2**32
        return positions.astype(np.int64), labels.astype(np.int64), noise


def _permute_rows(labels: np.ndarray, seed: int, key: str, first_anchor: int) -> np.ndarray:
    """Returns the labels ``[n, g]`` of n consecutive anchors, each row shuffled by itself."""
    n, g = labels.shape
    random_bits = draw_random_bits(seed, f"permuted labels/{key}", first_anchor, n, -(-g // 4) * 4)
    return np.take_along_axis(labels, random_bits[:, :g].argsort(axis=1, kind="stable"), axis=1)


def _order_anchors(part: MixturePart, seed: int, split: str, block_anchors: int) -> Order:
    assert part.corpus is not None, "Mixture.read_from says which corpus a part reads"
    anchors, documents = get_usable_counts(part.corpus, part.objective, split)
    lacking = f"corpus {part.corpus.name} has no {split} text for {part.objective.name} ({part.objective.needs})"
    if not sum(anchors):
        column = part.objective.column
        lacks_column = column and column not in part.corpus.shard(0).rows.schema.names
        remedy = part.objective.remedy if lacks_column else "prepare more documents"
        raise TooFewDocuments(f"{lacking}: {remedy}")
    if sum(documents) < MIN_DOCUMENTS:
        raise TooFewDocuments(f"{lacking} in {MIN_DOCUMENTS} documents, which negatives need: prepare more documents")
    block_anchors = min(block_anchors, VALIDATION_ANCHORS) if split == "validation" else block_anchors
    fingerprint = part.corpus.manifest.fingerprint
    return Order(anchors, documents, seed, block_anchors, part.objective.name, corpus=fingerprint)
