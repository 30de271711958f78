"""Stores the documents that the input tasks encode, for the later stages of ``prepare``.

The input task with key K writes these files, which do not depend on other tasks:

K.arrow           record batches of documents, each batch sorted by ``place``, the sort key
K.documents.npy   ``[D]`` DOCUMENT; a document's index here is its ``number``, in the order of the input
K.paragraphs.npy  ``[P]`` PARAGRAPH, sorted by hash
K.rejected.jsonl  the rejected records
K.json            counts; written last, so it marks the other files as complete

A sort key is held_out << 32 | the upper 32 bits of ``key``, the document's hash. A bucket is a range of sort keys of
one split, and so a contiguous slice of each record batch.
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from data_pipeline.core.files import sync, write_atomically
from data_pipeline.corpus import OPTIONAL_COLUMNS, make_schema
from data_pipeline.matching import fold_characters

KEY_BYTES = 16
SEGMENT_BYTES = 1 << 26  # documents in memory that are sorted and written as a record batch
MAX_OPEN = 256  # mapped slices of files, above which they are copied into one
DOCUMENT = np.dtype([("text", "<u8"), ("place", "<u8")])  # hash of the text; sort key
PARAGRAPH = np.dtype([("hash", "<u8"), ("number", "<u4"), ("paragraph", "<u4")])  # document's number, index in it
HIDDEN_COLUMNS = {"key", "chars", "min_chars", "number", "place"}  # columns of spill files that shards lack


def make_spill_schema(wide: bool) -> pa.Schema:
    """Returns the columns of a shard and HIDDEN_COLUMNS. ``chars`` has the length of each paragraph; a document that
    loses paragraphs is dropped if fewer than ``min_chars`` remain. ``SpillWriter`` adds the last two columns."""
    hidden = {"key": pa.binary(KEY_BYTES), "chars": pa.list_(pa.uint32()), "min_chars": pa.uint32()}
    hidden |= {"number": pa.uint32(), "place": pa.uint64()}
    return pa.schema([*make_schema(wide, OPTIONAL_COLUMNS), *hidden.items()])


@dataclass(frozen=True)
class Buckets:
    """Counts of the buckets of each split; the buckets of held-out documents are numbered last."""

    train: int
    validation: int

    @property
    def count(self) -> int:
        return self.train + self.validation

    def find(self, sort_keys: np.ndarray) -> np.ndarray:
        """Returns the bucket of each document, ``[D]`` uint32."""
        held_out, upper = sort_keys >> np.uint64(32), sort_keys & np.uint64(0xFFFFFFFF)
        count = np.where(held_out, self.validation, self.train).astype(np.uint64)
        return ((upper * count >> np.uint64(32)) + held_out * np.uint64(self.train)).astype(np.uint32)

    def find_range(self, bucket: int) -> tuple[int, int]:
        """Returns the range of a bucket's sort keys, ``[first, end)``."""
        held_out = int(bucket >= self.train)
        number, count = (bucket - self.train, self.validation) if held_out else (bucket, self.train)
        first, end = (-(-(k << 32) // count) for k in (number, number + 1))  # rounded up
        return (held_out << 32) + first, (held_out << 32) + end


def read_keys(column: pa.Array) -> np.ndarray:
    """Reads the keys of documents, ``[D, 2]`` big-endian uint64."""
    flat = np.frombuffer(column.buffers()[1], dtype=">u8").reshape(-1, 2)
    return flat[column.offset : column.offset + len(column)]


class SpillWriter:
    """Writes the encoded documents of an input task. ``finish`` gives its files their final names."""

    def __init__(self, folder: Path, key: str, wide: bool) -> None:
        self.folder, self.key = folder, key
        self.schema = make_spill_schema(wide)
        self.num_documents = self.num_bytes = 0
        self.filled: set[str] = set()  # optional columns with content, except "accepted", an index into "answers"
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._documents: list[np.ndarray] = []
        self._paragraphs: list[np.ndarray] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._sink = pa.OSFile(str(self._partial(".arrow")), "wb")
        self._file = pa.ipc.new_file(self._sink, self.schema)
        self._rejected = self._partial(".rejected.jsonl").open("w", encoding="utf-8", errors="backslashreplace")

    def _partial(self, suffix: str) -> Path:
        return self.folder / f"{self.key}{suffix}.{os.getpid()}.tmp"

    def add(self, rows: pa.RecordBatch, text_hashes: np.ndarray, paragraph_hashes: np.ndarray) -> None:
        """Adds documents, with the hashes of their texts, ``[D]``, and of their paragraphs, ``[P]``."""
        numbers = np.arange(self.num_documents, self.num_documents + rows.num_rows, dtype=np.uint32)
        upper = read_keys(rows.column("key"))[:, 0].astype(np.uint64) >> np.uint64(32)
        sort_keys = rows.column("held_out").to_numpy().astype(np.uint64) << np.uint64(32) | upper
        self.num_documents += rows.num_rows
        lengths = np.diff(rows.column("chars").offsets.to_numpy())
        paragraphs = np.empty(len(paragraph_hashes), dtype=PARAGRAPH)
        paragraphs["hash"], paragraphs["number"] = paragraph_hashes, np.repeat(numbers, lengths)
        paragraphs["paragraph"] = np.arange(len(paragraphs)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._paragraphs.append(paragraphs)
        documents = np.empty(rows.num_rows, dtype=DOCUMENT)
        documents["text"], documents["place"] = text_hashes, sort_keys
        self._documents.append(documents)
        self.filled |= {name for name in OPTIONAL_COLUMNS if name != "accepted" and len(rows.column(name).flatten())}
        self._pending_bytes += rows.nbytes
        self.num_bytes += rows.nbytes
        rows = rows.append_column("number", pa.array(numbers))
        self._pending.append(rows.append_column("place", pa.array(sort_keys)))
        if self._pending_bytes >= SEGMENT_BYTES:
            self._write_segment()

    def reject(self, file: str, line: int, reason: str, size: int) -> None:
        """Writes a rejected record at once, since a broken file may have more of them than memory holds."""
        entry = {"file": file, "line": line, "reason": reason, "bytes": size}
        self._rejected.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _write_segment(self) -> None:
        """Writes the pending documents as one record batch, sorted by ``place``."""
        if not self._pending:
            return
        rows = pa.concat_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        self._file.write_batch(rows.take(pa.array(np.argsort(rows.column("place").to_numpy(), kind="stable"))))

    def finish(self, tallies: dict[str, object]) -> None:
        """Writes the pending documents, the arrays, and last the counts, which mark the output as complete."""
        self._write_segment()
        self._file.close()
        self._sink.close()
        self._rejected.close()
        paragraphs = np.concatenate([np.empty(0, PARAGRAPH), *self._paragraphs])
        paragraphs = paragraphs[np.argsort(paragraphs["hash"], kind="stable")]
        save_atomically(self.folder / f"{self.key}.paragraphs.npy", paragraphs)
        documents = np.concatenate([np.empty(0, DOCUMENT), *self._documents])
        save_atomically(self.folder / f"{self.key}.documents.npy", documents)
        for suffix in (".arrow", ".rejected.jsonl"):
            sync(self._partial(suffix))
            self._partial(suffix).replace(self.folder / f"{self.key}{suffix}")
        filled = sorted(self.filled | ({"accepted"} if "answers" in self.filled else set()))
        counts: dict[str, object] = {"documents": self.num_documents, "paragraphs": len(paragraphs)}
        counts |= {"bytes": self.num_bytes, "filled": filled, **tallies}
        write_atomically(self.folder / f"{self.key}.json", json.dumps(counts, ensure_ascii=False))


def save_atomically(path: Path, values: np.ndarray) -> None:
    """Saves an array, so that the file is either complete or missing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.save(file, values)
    temporary.replace(path)


def hash_string(text: str) -> int:
    return xxh3_64_intdigest(fold_characters(text).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Spills:
    """Output of all input tasks, with their keys and their counts of documents, and the buckets to cut it into."""

    folder: Path
    keys: list[str]
    counts: list[int]
    buckets: Buckets

    @cached_property
    def starts(self) -> np.ndarray:
        """Returns the offset of each task's documents among those of all tasks, ``[T + 1]``."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    def load(self, task: int, name: str) -> np.ndarray:
        """Memory-maps a task's array, "documents" or "paragraphs"."""
        return np.load(self.folder / f"{self.keys[task]}.{name}.npy", mmap_mode="r")

    def read_bucket(self, first: int, end: int) -> tuple[pa.RecordBatch | None, np.ndarray]:
        """Returns the documents with a sort key in [first, end), in input order, and the task of each, ``[D]``."""
        batches: list[pa.RecordBatch] = []
        tasks: list[np.ndarray] = []
        for task, key in enumerate(self.keys):
            file = pa.ipc.open_file(pa.memory_map(str(self.folder / f"{key}.arrow")))
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                low, high = np.searchsorted(batch.column("place").to_numpy(), np.array([first, end], np.uint64))
                if high > low:
                    batches.append(batch.slice(low, high - low))
                    tasks.append(np.full(high - low, task))
            if len(batches) > MAX_OPEN:
                batches = [pa.concat_batches(batches)]
        if not batches:
            return None, np.empty(0, dtype=np.int64)
        rows, task_of = pa.concat_batches(batches), np.concatenate(tasks)
        order = np.lexsort((rows.column("number").to_numpy(), task_of))
        return rows.take(pa.array(order)), task_of[order]
