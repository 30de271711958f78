"""Orders anchor paragraphs: a pure function of the seed and the anchor number.

Pair ``i`` of an objective is slot ``i % g`` of anchor number ``i // g``, g being its pairs per anchor. Anchor numbers
count through epochs; in each epoch the shards are permuted, grouped into blocks, and the anchors are permuted within
a block, so that every anchor comes once per epoch and a reader needs one block at a time. Nothing here reads a shard:
the counts in the manifest are enough, which is what makes seeking to any batch immediate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipeline.core.errors import KinspanError

from .random_bits import make_philox_key, permute

BLOCK_ANCHORS = 1_000_000  # easy negatives are drawn from about this many paragraphs; bounds memory
BLOCK_SHARDS = 32  # bounds the files that a reader opens
VALIDATION_ANCHORS = 1 << 16  # for validation, which reads only a few thousand: bounds the time to open a block

MIN_DOCUMENTS = 2  # per block, since easy negatives come from another document than the anchor


class TooFewDocuments(KinspanError):
    """Signals that a split lacks the documents that an objective needs."""


@dataclass(frozen=True)
class Segment:
    """Holds a run of consecutive anchor numbers that lie in one block of one epoch."""

    first_anchor: int  # global anchor number, counted through epochs
    shards: tuple[int, ...]  # the block: shard numbers, ascending
    anchors: np.ndarray  # [n] indices into Block.anchors


@dataclass(frozen=True)
class Order:
    """Orders a corpus's anchors under one seed.

    anchors:   how many usable paragraphs each shard has
    documents: how many documents of each shard have one
    name:      the objective's: objectives share the order of shards, but not that of the anchors in a block
    block_anchors, block_shards: a block has no more, unless one shard or two documents need it
    corpus:    the corpus's fingerprint
    """

    anchors: tuple[int, ...]
    documents: tuple[int, ...]
    seed: int
    block_anchors: int = BLOCK_ANCHORS
    name: str = ""
    block_shards: int = BLOCK_SHARDS
    corpus: str = ""

    @property
    def epoch_anchors(self) -> int:
        return sum(self.anchors)

    def bound_blocks(self, sizes: Sequence[int]) -> int:
        """Returns an upper bound on the total size of two blocks, given each shard's size."""
        used = sorted(n for n in self.anchors if n)
        count = int(np.searchsorted(np.cumsum(used), self.block_anchors, side="right"))  # of the smallest shards
        count = max(min(count, self.block_shards), MIN_DOCUMENTS)
        return sum(sorted((size for size, n in zip(sizes, self.anchors, strict=True) if n), reverse=True)[: 2 * count])

    def segments(self, first_anchor: int, count: int) -> Iterator[Segment]:
        """Yields the anchors ``first_anchor .. first_anchor + count``, cut where a block or an epoch ends."""
        while count > 0:
            epoch, offset = divmod(first_anchor, self.epoch_anchors)
            starts, blocks = _blocks(self, epoch)
            number = int(np.searchsorted(starts, offset, side="right")) - 1
            size = int(starts[number + 1] - starts[number])
            inside = offset - int(starts[number])
            n = min(count, size - inside)
            key = make_philox_key(self.seed, f"anchors/{self.name}/{self.corpus}/{epoch}/{number}")
            yield Segment(first_anchor, blocks[number], permute(np.arange(inside, inside + n), size, key))
            first_anchor, count = first_anchor + n, count - n

    def look_ahead(self, anchor: int) -> tuple[int, ...] | None:
        """Returns the shards of the block after the anchor's; None in the first half, after which a reader may end."""
        epoch, offset = divmod(anchor, self.epoch_anchors)
        starts, blocks = _blocks(self, epoch)
        number = int(np.searchsorted(starts, offset, side="right")) - 1
        if 2 * offset < starts[number] + starts[number + 1]:
            return None
        return blocks[number + 1] if number + 1 < len(blocks) else _blocks(self, epoch + 1)[1][0]


@lru_cache(maxsize=64)
def _blocks(order: Order, epoch: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Returns an epoch's blocks: where each starts in the epoch, ``[num_blocks + 1]``, and its shards.

    Shards are permuted, then gathered until a block would exceed ``block_anchors`` or ``block_shards``. A last block of
    fewer than two documents joins the one before it, since it could give no easy negatives.
    """
    num_shards = len(order.anchors)
    permuted = permute(np.arange(num_shards), num_shards, make_philox_key(order.seed, f"shards/{order.corpus}/{epoch}"))
    blocks: list[list[int]] = []
    anchors = documents = 0
    for shard in permuted.tolist():
        if not order.anchors[shard]:
            continue
        is_large = anchors + order.anchors[shard] > order.block_anchors
        if not blocks or (documents >= MIN_DOCUMENTS and (is_large or len(blocks[-1]) >= order.block_shards)):
            blocks.append([])
            anchors = documents = 0
        blocks[-1].append(shard)
        anchors += order.anchors[shard]
        documents += order.documents[shard]
    if documents < MIN_DOCUMENTS and len(blocks) > 1:
        last = blocks.pop()
        blocks[-1] += last
    sizes = [sum(order.anchors[s] for s in block) for block in blocks]
    return np.concatenate([[0], np.cumsum(sizes)]), [tuple(sorted(block)) for block in blocks]
