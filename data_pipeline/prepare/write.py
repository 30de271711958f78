"""A bucket of encoded documents becomes shuffled Arrow shards; and the manifest."""

import json
import os
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from data_pipeline.core.files import hash_file, write_atomically
from data_pipeline.corpus import OPTIONAL_COLUMNS, SPLITS, Manifest, ShardInfo, map_shard
from data_pipeline.sampling.anchors import count_usable
from data_pipeline.sampling.pairs import Objective

from .cleaning import Tally
from .duplicates.exact import BOILERPLATE, DUPLICATE, KEPT, NEAR_DUPLICATE, REPEATED, TOO_SHORT, Inputs, read_removed
from .plan import load_plan
from .spill import HIDDEN_COLUMNS, Spill, read_bucket, read_keys
from .tasks import Progress, measure_peak

MAX_SHARD_TOKENS = 1 << 29  # Arrow's nested offsets have 32 bits, and documents do not divide evenly
SHARD_TOKENS = 1 << 24  # about 33 MB per shard, at two bytes per token
SHARED_IDS = "documents that share their id"
UNKNOWN_TOKENS = "tokens that stand for unknown text"
LENGTHS = ("tokens per sentence", "sentences per paragraph", "paragraphs per document")
MAX_LENGTH = 200  # longer ones are counted as this long
SAMPLED = 20  # documents or paragraphs of a bucket that are looked at for the report's samples, by reason
SAMPLE_CHARS = 300  # of each


def write_shards(
    plan_file: Path,
    spills: list[Spill],
    inputs: Inputs,
    fate_file: Path,
    removed: Path,
    num_ranges: int,
    columns: list[str],
    number: int,
    progress: Progress,
) -> None:
    """Write the shards of one bucket: its documents without what is removed, in the order of their keys.

    So the result depends neither on the order in which tasks ran nor on the number of workers. The task of number k
    leaves ``00k-000.arrow`` and so on, and ``00k.json``.

    fate_file: what becomes of each document, see ``near.decide`` and ``survivors``
    removed:   the folder of what ``find_paragraphs`` found, in ``num_ranges`` files
    """
    plan = load_plan(plan_file)
    output, buckets = plan.bucket_folder, plan.buckets
    output.mkdir(parents=True, exist_ok=True)
    is_shared = np.load(plan.shared, mmap_mode="r")
    rows, task_of = read_bucket(spills, buckets, number, plan.wide, inputs.starts, is_shared)
    tally, infos = Tally(), []
    if rows is not None:
        document = inputs.starts[task_of] + rows.column("number").to_numpy()
        dedup_status = np.load(fate_file, mmap_mode="r")[document]
        why = find_places(rows, task_of, read_removed(removed, num_ranges, number))
        rows, kept = _drop(rows, dedup_status, why, plan.tokenizer_file, tally)
        progress.add(len(document) - len(kept))
        keys = read_keys(rows.column("key"))
        order = np.lexsort((document[kept], keys[:, 1], keys[:, 0]))
        rows = rows.take(pa.array(order))
        _count_rows(rows, plan.unknown, tally)
        _count_shared(rows, is_shared[document[kept][order]], tally)
        for k, part in enumerate(_cut(rows, plan.settings["shard_tokens"])):
            path = output / f"{number:05d}-{k:03d}.arrow"
            write_shard(part.select(columns), path)
            infos.append(asdict(describe_shard(path, SPLITS[number >= buckets.train], plan.objectives)))
            progress.add(part.num_rows)
    facts = {"shards": infos, "tally": vars(tally), "peak_bytes": measure_peak()}
    write_atomically(output / f"{number:05d}.json", json.dumps(facts))


def _drop(
    rows: pa.RecordBatch, dedup_status: np.ndarray, why: np.ndarray, tokenizer: Path, tally: Tally
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Take away repeated paragraphs, and documents that are repeated or too short without them; say which stay."""
    paragraphs, starts = rows.column("tokens").flatten(), _starts(rows.column("tokens")).tolist()
    decoder = Tokenizer.from_file(str(tokenizer))

    def read(paragraph: int) -> str:
        ids = [token for sentence in paragraphs[paragraph].as_py() for token in sentence]
        text = decoder.decode(ids[:SAMPLE_CHARS], skip_special_tokens=False).strip()
        return text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + " ..."

    for reason, name in (
        (DUPLICATE, "documents that repeat another"),
        (NEAR_DUPLICATE, "documents much like another"),
        (TOO_SHORT, "documents too short without repeated paragraphs"),
    ):
        numbers = np.flatnonzero(dedup_status == reason).tolist()
        tally.counts[name] += len(numbers)
        for number in numbers[:SAMPLED]:
            title = rows.column("title")[number].as_py() or rows.column("id")[number].as_py()
            text = read(starts[number]) if starts[number] < starts[number + 1] else ""  # a question may have no body
            tally.add_sample(name, f"{title}: {text}")
    for reason, name in (
        (REPEATED, "paragraphs that repeat another"),
        (BOILERPLATE, "paragraphs in many documents"),
    ):
        numbers = np.flatnonzero(why == reason).tolist()
        tally.counts[name] += len(numbers)
        for number in numbers[:SAMPLED]:
            tally.add_sample(name, read(number))
    stay = np.flatnonzero(dedup_status == KEPT)
    left, paragraphs_left = remove_paragraphs(rows, why == KEPT)
    tally.counts["paragraphs of dropped documents"] += int(np.delete(paragraphs_left, stay).sum())
    return left.take(pa.array(stay)), stay


def _cut(rows: pa.RecordBatch, shard_tokens: int) -> list[pa.RecordBatch]:
    """Cut a bucket into shards of about ``shard_tokens``, each with about as many documents. A group, which has one
    first half of its key, stays whole."""
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
    """The offsets of a list column, from 0 on, whatever it is a slice of."""
    offsets = column.offsets.to_numpy()
    return offsets - offsets[0]


def find_places(rows: pa.RecordBatch, task_of: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Find which paragraphs of the rows are removed, and why: ``[paragraphs]`` uint8, 0 for those that stay."""
    starts = _starts(rows.column("tokens"))
    why = np.zeros(starts[-1], dtype=np.uint8)
    row_keys = (task_of.astype(np.uint64) << np.uint64(32)) | rows.column("number").to_numpy()
    wanted = (removed["task"].astype(np.uint64) << np.uint64(32)) | removed["number"]
    row = np.searchsorted(row_keys, wanted)  # rows stand in the order of tasks and numbers
    why[starts[row] + removed["paragraph"]] = removed["why"]
    return why


def remove_paragraphs(rows: pa.RecordBatch, kept: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    """Remove the paragraphs that are not ``kept``, ``[paragraphs]`` bool; count those that each document has left."""
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
    """Count what is kept, in total and by source, and how many of the tokens are the one for what is ``unknown``."""
    paragraphs = rows.column("tokens").flatten()
    sentences = paragraphs.flatten()
    tokens = sentences.flatten().to_numpy()
    tally.counts.update(
        {
            "documents kept": rows.num_rows,
            "documents held out for validation": int(rows.column("held_out").to_numpy().sum()),
            "paragraphs kept": len(paragraphs),
            "sentences kept": len(sentences),
            "tokens kept": len(tokens),
            UNKNOWN_TOKENS: int((tokens == unknown).sum()) if unknown is not None else 0,
        }
    )
    for name, column in zip(LENGTHS, (sentences, paragraphs, rows.column("tokens")), strict=True):
        lengths = np.minimum(column.value_lengths().to_numpy(), MAX_LENGTH)
        tally.lengths[name] = np.bincount(lengths, minlength=MAX_LENGTH + 1).tolist()
    for pair in rows.column("source").value_counts().to_pylist():
        tally.sources[pair["values"]] = pair["counts"]


def _count_shared(rows: pa.RecordBatch, is_shared: np.ndarray, tally: Tally) -> None:
    """Count the documents that share their id with many, ``[documents]`` bool, and name such an id."""
    tally.counts[SHARED_IDS] += int(is_shared.sum())
    for number in np.flatnonzero(is_shared)[:SAMPLED].tolist():
        tally.add_sample(SHARED_IDS, rows.column("id")[number].as_py())


def write_shard(rows: pa.RecordBatch, path: Path) -> None:
    """Write one uncompressed record batch: only then are its offsets an index that can be memory-mapped."""
    (whole,) = pa.Table.from_batches([rows]).combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(whole)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def describe_shard(path: Path, split: str, objectives: dict[str, Objective]) -> ShardInfo:
    """Describe a shard as the manifest does."""
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
    """Name the columns of the shards: those that every corpus has, and of the others those that hold something."""
    return [
        name for name in schema.names if name not in HIDDEN_COLUMNS and (name not in OPTIONAL_COLUMNS or name in filled)
    ]


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes the manifest, last of all: only a whole corpus opens."""
    text = manifest.to_json().encode("utf-8", errors="backslashreplace").decode()  # names of files may hold any bytes
    write_atomically(folder / "manifest.json", text)
