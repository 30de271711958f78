"""Writes a bucket of encoded documents as shuffled Arrow shards, and the manifest."""

import json
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.files import hash_file, write_atomically
from data_pipeline.corpus import OPTIONAL_COLUMNS, SPLITS, Manifest, ShardInfo, map_shard
from data_pipeline.sampling.anchors import count_usable
from data_pipeline.sampling.pairs import Objective

from .cleaning import Tally
from .duplicates import BOILERPLATE, DUPLICATE, KEPT, NEAR_DUPLICATE, REPEATED, read_removed
from .plan import load_plan
from .spill import HIDDEN_COLUMNS, Spills, make_spill_schema, read_keys

MAX_SHARD_TOKENS = 1 << 29  # Arrow's nested offsets have 32 bits, and documents do not divide evenly
SHARD_TOKENS = 1 << 24  # about 33 MB per shard, at two bytes per token
UNKNOWN_TOKENS = "tokens that stand for unknown text"


def write_shards(
    plan_file: Path,
    spills: Spills,
    dedup_status: Path,
    removed: Path,
    num_ranges: int,
    filled: set[str],
    number: int,
) -> None:
    """Writes the documents of a bucket without repeated text, in the order of their keys, so that the order in which
    tasks run does not matter: ``buckets/00007-000.arrow`` and so on, and ``buckets/00007.json``.

    dedup_status: the file of ``duplicates.decide_documents``
    removed:      the folder of ``duplicates.find_paragraphs``, with ``num_ranges`` files
    filled:       optional columns with content
    """
    plan = load_plan(plan_file)
    output, buckets = plan.run / "buckets", plan.buckets
    output.mkdir(parents=True, exist_ok=True)
    rows, task_of = spills.read_bucket(*buckets.find_range(number))
    tally, infos = Tally(), []
    if rows is not None:
        document = spills.starts[task_of] + rows.column("number").to_numpy()
        status = np.load(dedup_status, mmap_mode="r")[document]
        why = find_places(rows, task_of, read_removed(removed, num_ranges, number))
        rows, kept = _drop(rows, status, why, tally)
        keys = read_keys(rows.column("key"))
        rows = rows.take(pa.array(np.lexsort((document[kept], keys[:, 1], keys[:, 0]))))
        _count_rows(rows, plan.unknown, tally)
        columns = name_columns(make_spill_schema(plan.wide), filled)
        for k, part in enumerate(_cut(rows, plan.settings["shard_tokens"])):
            path = output / f"{number:05d}-{k:03d}.arrow"
            write_shard(part.select(columns), path)
            infos.append(asdict(make_shard_info(path, SPLITS[number >= buckets.train], plan.objectives)))
    write_atomically(output / f"{number:05d}.json", json.dumps({"shards": infos, "tally": vars(tally)}))


def _drop(rows: pa.RecordBatch, status: np.ndarray, why: np.ndarray, tally: Tally) -> tuple[pa.RecordBatch, np.ndarray]:
    """Drops repeated paragraphs, and documents that are repeated or too short without them; returns the kept rows and
    their numbers."""
    starts = _starts(rows.column("tokens"))
    chars = np.concatenate([[0], np.cumsum(rows.column("chars").flatten().to_numpy() * (why == 0), dtype=np.int64)])
    rows, lengths = remove_paragraphs(rows, why == 0)
    min_chars = np.maximum(1, rows.column("min_chars").to_numpy())
    is_short = (lengths < np.diff(starts)) & (np.diff(chars[starts]) < min_chars)
    stays = (status == KEPT) & ~is_short
    tally.counts.update(
        {
            "documents that repeat another": int((status == DUPLICATE).sum()),
            "documents much like another": int((status == NEAR_DUPLICATE).sum()),
            "documents too short without repeated paragraphs": int(((status == KEPT) & is_short).sum()),
            "paragraphs that repeat another": int((why == REPEATED).sum()),
            "paragraphs in many documents": int((why == BOILERPLATE).sum()),
            "paragraphs of dropped documents": int(lengths[~stays].sum()),
        }
    )
    kept = np.flatnonzero(stays)
    return rows.take(pa.array(kept)), kept


def _cut(rows: pa.RecordBatch, shard_tokens: int) -> list[pa.RecordBatch]:
    """Cuts a bucket into shards of about ``shard_tokens``. Groups, equal in the first half of the key, stay whole."""
    if not rows.num_rows:
        return []
    tokens = len(rows.column("tokens").flatten().flatten().flatten())
    count = max(1, min(rows.num_rows, round(tokens / shard_tokens)))
    group = read_keys(rows.column("key"))[:, 0]
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    places = np.searchsorted(begins, np.arange(count) * rows.num_rows // count, side="right") - 1
    ends = [*np.unique(begins[places]).tolist(), rows.num_rows]
    return [rows.slice(start, end - start) for start, end in pairwise(ends)]


def _starts(column: pa.ListArray) -> np.ndarray:
    """Returns the offsets of a list column from 0 on, also of a slice."""
    offsets = column.offsets.to_numpy()
    return offsets - offsets[0]


def find_places(rows: pa.RecordBatch, task_of: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Returns why each paragraph of the rows is removed: ``[paragraphs]`` uint8, 0 for those that stay."""
    starts = _starts(rows.column("tokens"))
    why = np.zeros(starts[-1], dtype=np.uint8)
    row_keys = (task_of.astype(np.uint64) << np.uint64(32)) | rows.column("number").to_numpy()
    wanted = (removed["task"].astype(np.uint64) << np.uint64(32)) | removed["number"]
    row = np.searchsorted(row_keys, wanted)  # rows stand in the order of tasks and numbers
    why[starts[row] + removed["paragraph"]] = removed["why"]
    return why


def remove_paragraphs(rows: pa.RecordBatch, kept: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    """Removes the paragraphs that are not ``kept``, ``[paragraphs]`` bool; counts those that each document has left."""
    column = rows.column("tokens")
    starts = np.concatenate([[0], np.cumsum(kept)])[_starts(column)].astype(np.int32)
    if not kept.all():
        tokens = pa.ListArray.from_arrays(pa.array(starts), column.flatten().filter(pa.array(kept)))
        place = rows.schema.get_field_index("tokens")
        rows = pa.RecordBatch.from_arrays(
            [*rows.columns[:place], tokens, *rows.columns[place + 1 :]], schema=rows.schema
        )
    return rows, np.diff(starts)


def _count_rows(rows: pa.RecordBatch, unknown: int | None, tally: Tally) -> None:
    """Counts the kept rows, in total and by source, and the tokens of ``unknown`` text."""
    paragraphs = rows.column("tokens").flatten()
    tokens = paragraphs.flatten().flatten().to_numpy()
    tally.counts.update(
        {
            "documents kept": rows.num_rows,
            "documents held out for validation": int(rows.column("held_out").to_numpy().sum()),
            "paragraphs kept": len(paragraphs),
            "sentences kept": len(paragraphs.flatten()),
            "tokens kept": len(tokens),
            UNKNOWN_TOKENS: int((tokens == unknown).sum()) if unknown is not None else 0,
        }
    )
    for pair in rows.column("source").value_counts().to_pylist():
        tally.sources[pair["values"]] = pair["counts"]


def write_shard(rows: pa.RecordBatch, path: Path) -> None:
    """Writes one uncompressed record batch: only then are its offsets an index that can be memory-mapped."""
    (batch,) = pa.Table.from_batches([rows]).combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(batch)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def make_shard_info(path: Path, split: str, objectives: dict[str, Objective]) -> ShardInfo:
    """Returns the manifest's entry of a shard."""
    shard = map_shard(path)
    fitting = {name: o for name, o in objectives.items() if not o.column or o.column in shard.rows.schema.names}
    return ShardInfo(
        file=path.name,
        documents=len(shard.document_starts) - 1,
        paragraphs=len(shard.paragraph_starts) - 1,
        sentences=len(shard.sentence_starts) - 1,
        tokens=len(shard.tokens),
        usable={name: count_usable(shard, objective) for name, objective in fitting.items()},
        bytes=path.stat().st_size,
        sha256=hash_file(path),
        split=split,
    )


def name_columns(schema: pa.Schema, filled: set[str]) -> list[str]:
    """Names the columns of the shards: without optional ones that are empty."""
    return [name for name in schema.names if name not in HIDDEN_COLUMNS | (set(OPTIONAL_COLUMNS) - filled)]


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes the manifest, last of all: only a complete corpus opens."""
    text = manifest.to_json().encode("utf-8", errors="backslashreplace").decode()  # names of files may hold any bytes
    write_atomically(folder / "manifest.json", text)
