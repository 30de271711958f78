"""Counts the paragraphs that an objective can use as anchors, and opens blocks of them."""

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import SPLITS, Corpus, Shard

from .block import Block, find_usable
from .pairs import Objective


def count_usable(shard: Shard, objective: Objective) -> dict[str, dict[str, int]]:
    """Returns, for each split, how many usable paragraphs a shard has and how many documents have one."""
    counts, shard = {}, objective.see(shard)
    for split in SPLITS:
        paragraphs, rows = find_usable(shard, split, objective.usable)
        counts[split] = {"anchors": len(paragraphs), "documents": len(np.unique(rows))}
    return counts


def get_usable_counts(corpus: Corpus, objective: Objective, split: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns each shard's usable anchors and documents with one, by the manifest or, if it lacks them, the shards."""
    counts = [_get_counts(corpus, number, objective, split) for number in range(len(corpus.manifest.shards))]
    return tuple(c["anchors"] for c in counts), tuple(c["documents"] for c in counts)


def _get_counts(corpus: Corpus, number: int, objective: Objective, split: str) -> dict[str, int]:
    info = corpus.manifest.shards[number]
    if objective.name in info.usable:
        return info.usable[objective.name][split]
    if info.split != split:
        return {"anchors": 0, "documents": 0}
    key = (number, objective.name, objective.usable, objective.view)
    if key not in corpus.usable_counts:
        corpus.usable_counts[key] = count_usable(corpus.shard(number), objective)
    return corpus.usable_counts[key][split]


def open_block(corpus: Corpus, shard_numbers: tuple[int, ...], split: str, objective: Objective) -> Block:
    """Returns the block of these shards. Raises KinspanError if it has other anchors than the manifest counts."""
    block = Block([objective.see(shard) for shard in corpus.shards(shard_numbers)], split, objective.usable)
    counts = [corpus.manifest.shards[n].usable.get(objective.name) for n in shard_numbers]
    if all(counts) and sum(p[split]["anchors"] for p in counts if p) != len(block.anchors):
        raise KinspanError(f"{corpus.name}/manifest.json is damaged: other counts for {objective.name} than the shards")
    return block
