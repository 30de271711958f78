"""Writes a bucket of encoded documents as shuffled Arrow shards, and the manifest."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.files import hash_file, sync, write_atomically
from data_pipeline.corpus import OPTIONAL_COLUMNS, SPLITS, Manifest, ShardInfo, map_shard
from data_pipeline.sampling.anchors import count_usable
from data_pipeline.sampling.pairs import Objective

from .cleaning import Tally
from .duplicates import DUPLICATE, KEPT, NEAR_DUPLICATE, WHY_BOILERPLATE, WHY_REPEATED, read_removed
from .plan import load_plan
from .spill import HIDDEN_COLUMNS, Spills, make_spill_schema, read_keys

SHARD_TOKENS = 1 << 24  # about 33 MB per shard, at two bytes per token
UNKNOWN_TOKENS = "tokens that stand for unknown text"


def write_shards(
    plan_file: Path, spills: Spills, dedup_status: Path, removed: Path, num_ranges: int, filled: set[str], number: int
) -> None:
    """Writes the deduplicated documents of a bucket to ``buckets/00007-000.arrow`` and so on, and their counts to
    ``buckets/00007.json``. Documents are sorted by key, so that the order in which tasks run does not matter.

    dedup_status, removed: outputs of ``duplicates.decide_documents`` and ``find_paragraphs``
    """
    plan = load_plan(plan_file)
    output, buckets = plan.run / "buckets", spills.buckets
    output.mkdir(parents=True, exist_ok=True)
    rows, task_of = spills.read_bucket(*buckets.find_range(number))
    tally, infos = Tally(), []
    if rows is not None:
        document = spills.starts[task_of] + rows.column("number").to_numpy()
        status = np.load(dedup_status, mmap_mode="r")[document]
        reasons = find_reasons(rows, task_of, read_removed(removed, num_ranges, number))
        rows, kept_rows = _drop(rows, status, reasons, tally)
        keys = read_keys(rows.column("key"))
        rows = rows.take(pa.array(np.lexsort((document[kept_rows], keys[:, 1], keys[:, 0]))))
        _count_rows(rows, plan.unknown_id, tally)
        dropped = HIDDEN_COLUMNS | (set(OPTIONAL_COLUMNS) - filled)
        columns = [name for name in make_spill_schema(plan.wide).names if name not in dropped]
        for k, part in enumerate(_cut(rows, plan.settings["shard_tokens"])):
            path = output / f"{number:05d}-{k:03d}.arrow"
            write_shard(part.select(columns), path)
            infos.append(asdict(make_shard_info(path, SPLITS[number >= buckets.train], plan.objectives)))
    write_atomically(output / f"{number:05d}.json", json.dumps({"shards": infos, "tally": vars(tally)}))


def _drop(rows: pa.RecordBatch, status: np.ndarray, why: np.ndarray, tally: Tally) -> tuple[pa.RecordBatch, np.ndarray]:
    """Drops repeated paragraphs, repeated documents, and documents that removed paragraphs leave too short; ``why`` is
    the reason to remove each paragraph, or 0. Returns the kept rows and their indices."""
    starts = _get_offsets(rows.column("tokens"))
    chars = np.concatenate([[0], np.cumsum(rows.column("chars").flatten().to_numpy() * (why == 0), dtype=np.int64)])
    rows, lengths = remove_paragraphs(rows, why == 0)
    is_short = (lengths < np.diff(starts)) & (np.diff(chars[starts]) < rows.column("min_chars").to_numpy())
    is_kept = (status == KEPT) & ~is_short
    tally.counts.update(
        {
            "documents that repeat another": int((status == DUPLICATE).sum()),
            "documents much like another": int((status == NEAR_DUPLICATE).sum()),
            "documents too short without repeated paragraphs": int(((status == KEPT) & is_short).sum()),
            "paragraphs that repeat another": int((why == WHY_REPEATED).sum()),
            "paragraphs in many documents": int((why == WHY_BOILERPLATE).sum()),
            "paragraphs of dropped documents": int(lengths[~is_kept].sum()),
        }
    )
    kept_rows = np.flatnonzero(is_kept)
    return rows.take(pa.array(kept_rows)), kept_rows


def _cut(rows: pa.RecordBatch, shard_tokens: int) -> list[pa.RecordBatch]:
    """Cuts a bucket into shards of about ``shard_tokens``, none within a group, whose keys have the same first half."""
    if not rows.num_rows:
        return []
    tokens = len(rows.column("tokens").flatten().flatten().flatten())
    count = max(1, min(rows.num_rows, round(tokens / shard_tokens)))
    group = read_keys(rows.column("key"))[:, 0]
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    first_groups = np.searchsorted(begins, np.arange(count) * rows.num_rows // count, side="right") - 1
    bounds = [*np.unique(begins[first_groups]).tolist(), rows.num_rows]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def _get_offsets(column: pa.ListArray) -> np.ndarray:
    """Returns the offsets of a list column or a slice of it; the first is 0."""
    offsets = column.offsets.to_numpy()
    return offsets - offsets[0]


def find_reasons(rows: pa.RecordBatch, task_of: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Returns why each paragraph of the rows is removed: ``[paragraphs]`` uint8, 0 if it is kept."""
    starts = _get_offsets(rows.column("tokens"))
    reasons = np.zeros(starts[-1], dtype=np.uint8)
    row_keys = (task_of.astype(np.uint64) << np.uint64(32)) | rows.column("number").to_numpy()
    removed_keys = (removed["task"].astype(np.uint64) << np.uint64(32)) | removed["number"]
    row = np.searchsorted(row_keys, removed_keys)  # rows are sorted by task and number
    reasons[starts[row] + removed["paragraph"]] = removed["why"]
    return reasons


def remove_paragraphs(rows: pa.RecordBatch, kept: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    """Removes the paragraphs that are not ``kept``, ``[paragraphs]`` bool; counts what each document keeps, ``[D]``."""
    column = rows.column("tokens")
    starts = np.concatenate([[0], np.cumsum(kept)])[_get_offsets(column)].astype(np.int32)
    if not kept.all():
        tokens = pa.ListArray.from_arrays(pa.array(starts), column.flatten().filter(pa.array(kept)))
        index = rows.schema.get_field_index("tokens")
        rows = rows.set_column(index, rows.schema.field(index), tokens)
    return rows, np.diff(starts)


def _count_rows(rows: pa.RecordBatch, unknown_id: int | None, tally: Tally) -> None:
    """Counts the kept rows, in total and by source, and their unknown tokens."""
    paragraphs = rows.column("tokens").flatten()
    tokens = paragraphs.flatten().flatten().to_numpy()
    tally.counts.update(
        {
            "documents kept": rows.num_rows,
            "documents held out for validation": int(rows.column("held_out").to_numpy().sum()),
            "paragraphs kept": len(paragraphs),
            "sentences kept": len(paragraphs.flatten()),
            "tokens kept": len(tokens),
            UNKNOWN_TOKENS: int((tokens == unknown_id).sum()) if unknown_id is not None else 0,
        }
    )
    for entry in rows.column("source").value_counts().to_pylist():
        tally.sources[entry["values"]] = entry["counts"]


def write_shard(rows: pa.RecordBatch, path: Path) -> None:
    """Writes a single, uncompressed record batch, whose offsets can be memory-mapped as an index."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    sync(path)


def make_shard_info(path: Path, split: str, objectives: dict[str, Objective]) -> ShardInfo:
    """Returns the manifest's entry of a shard."""
    shard = map_shard(path)
    usable = {name: o for name, o in objectives.items() if not o.column or o.column in shard.rows.schema.names}
    return ShardInfo(
        file=path.name,
        documents=len(shard.document_starts) - 1,
        paragraphs=len(shard.paragraph_starts) - 1,
        sentences=len(shard.sentence_starts) - 1,
        tokens=len(shard.tokens),
        usable={name: count_usable(shard, objective) for name, objective in usable.items()},
        bytes=path.stat().st_size,
        sha256=hash_file(path),
        split=split,
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes the manifest, which makes the corpus complete."""
    write_atomically(folder / "manifest.json", json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n")
