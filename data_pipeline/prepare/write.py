"""A spill file of encoded documents becomes shuffled Arrow shards and a manifest."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.corpus import OPTIONAL_COLUMNS, SPLITS, Manifest, ShardInfo, hash_file, map_shard
from data_pipeline.files import write_atomically
from data_pipeline.sampling.anchors import count_usable
from data_pipeline.sampling.pairs import Objective
from data_pipeline.sampling.random_bits import make_philox_key, permute

MAX_SHARD_TOKENS = 1 << 29  # Arrow's nested offsets have 32 bits, and documents do not divide evenly
SHARD_TOKENS = 1 << 24  # about 33 MB per shard, at two bytes per token
PURPOSES = ("shards of a corpus", "shards of held-out documents")  # of the shuffling, by split


def write_shards(
    spill: Path,
    folder: Path,
    objectives: dict[str, Objective],
    shard_tokens: int,
    report_progress: Callable[[int], object],
) -> list[ShardInfo]:
    """Deal the spilled documents out to shards by a keyed permutation, so that each shard is a fair sample.

    Held-out documents go to shards of their own, so that validation opens no shard of training, nor training one of
    validation.

    The result depends on the documents and their order alone, and not on how many workers encoded them.

    Args:
        spill: an Arrow file of record batches
        folder: gets the folder ``shards``
        objectives: for each of them, the manifest counts the usable anchors of a shard
        shard_tokens: about how many tokens a shard holds
        report_progress: is called with the number of documents of each shard as it is written
    """
    reader = pa.ipc.open_file(pa.memory_map(str(spill)))
    batches = [reader.get_batch(k) for k in range(reader.num_record_batches)]
    columns = _find_columns(batches)
    sizes = np.array([b.num_rows for b in batches])
    batch_of = np.repeat(np.arange(len(batches)), sizes)
    first = np.cumsum(sizes) - sizes
    (folder / "shards").mkdir()
    infos: list[ShardInfo] = []
    for split, mine in _deal_out(batches, shard_tokens):
        parts = [
            batches[k].take(pa.array(mine[batch_of[mine] == k] - first[k])) for k in np.unique(batch_of[mine]).tolist()
        ]
        name = f"shards/{len(infos):05d}.arrow"
        _write_shard(pa.Table.from_batches(parts).select(columns), folder / name)
        infos.append(_describe_shard(folder, name, split, objectives))
        report_progress(len(mine))
    return infos


def _deal_out(batches: list[pa.RecordBatch], shard_tokens: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each shard's split and the numbers of its documents, ascending: first the shards of the training split."""
    tokens = np.concatenate([_count_tokens(b) for b in batches])
    held_out = np.concatenate([b.column("held_out").to_numpy() for b in batches])
    for number, (split, purpose) in enumerate(zip(SPLITS, PURPOSES, strict=True)):
        documents = np.flatnonzero(held_out == number)
        if not len(documents):
            continue
        num_shards = max(1, min(len(documents), -(-int(tokens[documents].sum()) // shard_tokens)))
        shuffled = permute(np.arange(len(documents)), len(documents), make_philox_key(0, purpose))
        shard_of = np.empty(len(documents), dtype=np.int32)
        shard_of[shuffled] = np.arange(len(documents)) * num_shards // len(documents)
        for shard in range(num_shards):
            yield split, documents[shard_of == shard]


def _count_tokens(batch: pa.RecordBatch) -> np.ndarray:
    """Count the tokens of each document."""
    documents = batch.column("tokens")
    paragraphs = documents.values
    ends = documents.offsets.to_numpy()
    for nested in (paragraphs, paragraphs.values):
        ends = nested.offsets.to_numpy()[ends]
    return np.diff(ends)


def _find_columns(batches: list[pa.RecordBatch]) -> list[str]:
    """Name the columns of the shards: those that every corpus has, and of the others those that hold something."""
    lists = [name for name in OPTIONAL_COLUMNS if name != "accepted"]
    filled = {name for name in lists if any(len(b.column(name).flatten()) for b in batches)}
    filled |= {"accepted"} if "answers" in filled else set()
    return [name for name in batches[0].schema.names if name not in OPTIONAL_COLUMNS or name in filled]


def _write_shard(table: pa.Table, path: Path) -> None:
    """Write one uncompressed record batch: only then are its offsets an index that can be memory-mapped."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        (whole,) = table.combine_chunks().to_batches()
        writer.write_batch(whole)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _describe_shard(folder: Path, name: str, split: str, objectives: dict[str, Objective]) -> ShardInfo:
    path = folder / name
    shard = map_shard(path)
    return ShardInfo(
        file=name,
        documents=len(shard.document_starts) - 1,
        paragraphs=len(shard.paragraph_starts) - 1,
        sentences=len(shard.sentence_starts) - 1,
        tokens=len(shard.tokens),
        usable={name: count_usable(shard, objective) for name, objective in objectives.items()},
        bytes=path.stat().st_size,
        sha256=hash_file(path),
        split=split,
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes the manifest, last of all: only a whole corpus opens."""
    text = manifest.to_json().encode("utf-8", errors="backslashreplace").decode()  # names of files may hold any bytes
    write_atomically(folder / "manifest.json", text)
