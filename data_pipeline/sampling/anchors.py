"""Which paragraphs an objective can use as anchors, counted shard by shard, and blocks of them."""

import numpy as np

from data_pipeline.corpus import SPLITS, Corpus, Shard
from data_pipeline.errors import KinspanError

from .block import Block, find_usable
from .pairs import Objective


def count_usable(shard: Shard, objective: Objective) -> dict[str, dict[str, int]]:
    """Usable paragraphs, and documents with one, of each split of a shard: what the manifest says of it."""
    counts = {}
    for split in SPLITS:
        paragraphs, rows = find_usable(shard, split, objective.usable)
        counts[split] = {"anchors": len(paragraphs), "documents": len(np.unique(rows))}
    return counts


def get_usable_counts(corpus: Corpus, objective: Objective, split: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Usable anchors, and documents with one, of each shard.

    From the manifest; of an objective that it does not know, such as a user's own, by a look at the shards' offsets.
    """
    counts = [
        (info.usable.get(objective.name) or count_usable(corpus.shard(number), objective))[split]
        for number, info in enumerate(corpus.manifest.shards)
    ]
    return tuple(c["anchors"] for c in counts), tuple(c["documents"] for c in counts)


def open_block(corpus: Corpus, shard_numbers: tuple[int, ...], split: str, objective: Objective) -> Block:
    """Raises KinspanError where the shards hold other anchors than the manifest says: orders go by its counts."""
    block = Block([corpus.shard(n) for n in shard_numbers], split, objective.usable)
    said = [corpus.manifest.shards[n].usable.get(objective.name) for n in shard_numbers]
    if all(said) and sum(s[split]["anchors"] for s in said if s) != len(block.paragraph):
        raise KinspanError(
            f"{corpus.folder}/manifest.json is damaged (its usable paragraphs for {objective.name} are not those of "
            "the shards): prepare the corpus again"
        )
    return block
