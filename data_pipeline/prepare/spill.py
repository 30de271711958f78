"""Encoded documents between the stages: what each input task writes, in the order of keys, and what reads it.

An input task of the key K leaves in its folder, whatever the other inputs are:

K.arrow           record batches of documents, a segment each, sorted by split and key
K.rows.npy        ``[D]`` uint64, by row: where it stands in that order, see ``make_places``; the index of K.arrow
K.batches.npy     ``[batches]`` the rows of each
K.documents.npy   ``[D]`` DOCUMENT, by number; a document's number is its place in the task's input
K.paragraphs.npy  ``[P]`` PARAGRAPH, ascending: the hash of each paragraph and where it stands
K.rejected.jsonl  the records that are no documents
K.json            counts; written last, so that it marks the others as whole

A bucket is a range of keys of one split, and each file has a run of rows for it. Many files are first merged into a few
(``merge_spills``): each is opened once for each bucket, and 6,000 files for 1,500 buckets would be nine million times.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from data_pipeline.core.files import sync, write_atomically
from data_pipeline.corpus import OPTIONAL_COLUMNS, make_schema

from .tasks import Progress

KEY_BYTES = 16
SEGMENT_BYTES = 1 << 26  # of documents in memory before they are grouped by bucket and written
# text, id: hashes; place: see ``make_places``; chars: those of all paragraphs; least: how many it must have to be kept
DOCUMENT = np.dtype([("text", "<u8"), ("id", "<u8"), ("place", "<u8"), ("chars", "<u4"), ("least", "<u4")])
PARAGRAPH = np.dtype([("hash", "<u8"), ("number", "<u4"), ("paragraph", "<u4"), ("chars", "<u4")])
HIDDEN_COLUMNS = ("key", "chars", "least", "number")  # that shards do not have
MERGE_FILES = 128  # that become one
MAX_OPENS = 1 << 17  # of files, by all buckets together
SPLITS = ((0, 1, 2), (1, 2, 3))  # what ``find_held_out`` can make a training, or a held-out document of


def make_chunk_schema(wide: bool) -> pa.Schema:
    """Name the columns of an encoded chunk: those of a shard, the key that decides a document's place, the characters
    of each paragraph, and how many the document must have to be kept."""
    hidden = {"key": pa.binary(KEY_BYTES), "chars": pa.list_(pa.uint32()), "least": pa.uint32()}
    return pa.schema([*make_schema(wide, OPTIONAL_COLUMNS), *hidden.items()])


def make_spill_schema(wide: bool) -> pa.Schema:
    """Name the columns of a spill file: those of a chunk, and the documents' numbers."""
    return make_chunk_schema(wide).append(pa.field("number", pa.uint32()))


@dataclass(frozen=True)
class Buckets:
    """How many buckets there are for documents of each split; those of held-out documents come last.

    A bucket is a range of the upper halves of the first halves of keys.
    """

    train: int
    validation: int

    @property
    def count(self) -> int:
        return self.train + self.validation

    def place(self, upper: np.ndarray, held_out: np.ndarray) -> np.ndarray:
        """Place documents into buckets, ``[D]``, by the upper half of the first half of each one's key."""
        of_split = np.array([self.train, self.validation], dtype=np.uint64)[held_out]
        return ((upper.astype(np.uint64) * of_split >> np.uint64(32)) + np.uint64(self.train) * held_out).astype(
            np.uint32
        )

    def find_range(self, bucket: int) -> tuple[int, int]:
        """Find the first and the end of the numbers of which ``place`` makes this bucket."""
        number, count = (bucket, self.train) if bucket < self.train else (bucket - self.train, self.validation)
        first, end = (-(-(k << 32) // count) for k in (number, number + 1))
        return first, end


def make_places(keys: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Make what a task's documents are sorted by: ``[D]`` uint64, the split and 32 bits of the key."""
    upper = keys[:, 0].astype(np.uint64) >> np.uint64(32)
    return splits.astype(np.uint64) << np.uint64(32) | upper


def find_held_out(splits: np.ndarray, is_shared: np.ndarray) -> np.ndarray:
    """Find which documents are held out, 0 or 1: bit 0 of ``splits`` says whether a hash of the id holds one out, and
    bit 1, which counts where many other documents share the id, whether a hash of id and text does."""
    return np.where(is_shared, splits >> 1, splits & 1).astype(np.uint8)


def read_keys(column: pa.Array) -> np.ndarray:
    """Read the keys of documents, ``[D, 2]`` big-endian uint64."""
    flat = np.frombuffer(column.buffers()[1], dtype=">u8").reshape(-1, 2)
    return flat[column.offset : column.offset + len(column)]


class SpillWriter:
    """Writes what an input task encodes. Nothing of it counts before ``finish``."""

    def __init__(self, folder: Path, key: str, wide: bool) -> None:
        self.folder, self.key = folder, key
        self.schema = make_spill_schema(wide)
        self.num_documents = 0
        self.filled: set[str] = set()  # the optional columns that hold something
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows: list[np.ndarray] = []  # the places of each segment
        self._documents: list[np.ndarray] = []
        self._paragraphs: list[np.ndarray] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._sink = pa.OSFile(str(self._partial(".arrow")), "wb")
        self._file = pa.ipc.new_file(self._sink, self.schema)
        self._rejected = self._partial(".rejected.jsonl").open("w", encoding="utf-8", errors="backslashreplace")

    def _partial(self, suffix: str) -> Path:
        return self.folder / f"{self.key}{suffix}.{os.getpid()}.tmp"

    def add(self, rows: pa.RecordBatch, documents: np.ndarray, paragraphs: np.ndarray) -> None:
        """Add the documents of a chunk, with the hashes of their texts, ``[D]``, and of their paragraphs, ``[P]``."""
        numbers = np.arange(self.num_documents, self.num_documents + rows.num_rows, dtype=np.uint32)
        self.num_documents += rows.num_rows
        lengths, chars = np.diff(rows.column("chars").offsets.to_numpy()), rows.column("chars").flatten().to_numpy()
        placed = np.empty(len(paragraphs), dtype=PARAGRAPH)
        placed["hash"], placed["number"] = paragraphs, np.repeat(numbers, lengths)
        placed["paragraph"] = np.arange(len(paragraphs)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        placed["chars"] = chars
        self._paragraphs.append(placed)
        described = np.empty(rows.num_rows, dtype=DOCUMENT)
        described["id"] = [hash_string(name) for name in rows.column("id").to_pylist()]
        described["place"] = make_places(read_keys(rows.column("key")), rows.column("held_out").to_numpy())
        described["text"], described["least"] = documents, rows.column("least").to_numpy()
        described["chars"] = np.diff(np.concatenate([[0], np.cumsum(chars, dtype=np.int64)])[np.cumsum([0, *lengths])])
        self._documents.append(described)
        self.filled |= find_filled(rows)
        columns = [*rows.columns, pa.array(numbers)]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= SEGMENT_BYTES:
            self._write_segment()

    def reject(self, entries: Iterable[dict]) -> None:
        """Note records that are no documents, at once: a broken file may have more of them than memory holds."""
        self._rejected.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)

    def _write_segment(self) -> None:
        """Write the documents that wait as one record batch, in the order of their places."""
        if not self._waiting:
            return
        (rows,) = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting, self._waiting_bytes = [], 0
        places = make_places(read_keys(rows.column("key")), rows.column("held_out").to_numpy())
        order = np.argsort(places, kind="stable")
        self._file.write_batch(rows.take(pa.array(order)))
        self._rows.append(places[order])

    def finish(self, facts: dict[str, Any]) -> None:
        """Write what is left, and then the marks that it is whole."""
        self._write_segment()
        self._file.close()
        self._sink.close()
        sync(self._partial(".arrow"))
        self._partial(".arrow").replace(self.folder / f"{self.key}.arrow")
        paragraphs = np.concatenate([np.empty(0, PARAGRAPH), *self._paragraphs])
        self._save("paragraphs", paragraphs[np.argsort(paragraphs["hash"], kind="stable")])
        self._save("documents", np.concatenate([np.empty(0, DOCUMENT), *self._documents]))
        self._save("rows", np.concatenate([np.empty(0, np.uint64), *self._rows]))
        self._save("batches", np.array([len(rows) for rows in self._rows], dtype=np.uint32))
        self._rejected.close()
        sync(self._partial(".rejected.jsonl"))
        self._partial(".rejected.jsonl").replace(self.folder / f"{self.key}.rejected.jsonl")
        counts = {"documents": self.num_documents, "paragraphs": len(paragraphs), "filled": sorted(self.filled)}
        write_atomically(self.folder / f"{self.key}.json", json.dumps({**counts, **facts}, ensure_ascii=False))

    def _save(self, name: str, values: np.ndarray) -> None:
        partial = self._partial(f".{name}.npy")
        with partial.open("wb") as file:
            np.save(file, values)
        partial.replace(self.folder / f"{self.key}.{name}.npy")


def find_filled(rows: pa.RecordBatch) -> set[str]:
    """Name the optional columns that hold something."""
    lists = [name for name in OPTIONAL_COLUMNS if name != "accepted"]
    filled = {name for name in lists if len(rows.column(name).flatten())}
    return filled | ({"accepted"} if "answers" in filled else set())


def is_written(folder: Path, key: str) -> bool:
    """Whether the output of this input task is there, whole."""
    return (folder / f"{key}.json").exists()


def forget(folder: Path, key: str) -> None:
    """Have the input task done again."""
    (folder / f"{key}.json").unlink()


def load_facts(folder: Path, key: str) -> dict[str, Any]:
    """Load the counts of an input task, and what was said to ``finish``."""
    return json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))


def load_array(folder: Path, key: str, name: str) -> np.ndarray:
    """Map one of an input task's arrays."""
    return np.load(folder / f"{key}.{name}.npy", mmap_mode="r")


def hash_string(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Spill:
    """A file of documents. ``task`` is the input task that they are of; -1 where ``K.tasks.npy`` has it of each row."""

    folder: Path
    key: str
    task: int = -1


class OpenSpill:
    """A file of documents that is mapped into memory."""

    def __init__(self, spill: Spill) -> None:
        self.spill = spill
        self.rows = load_array(spill.folder, spill.key, "rows")
        sizes = load_array(spill.folder, spill.key, "batches")
        self.ends = np.cumsum(sizes, dtype=np.int64).tolist()
        source = pa.memory_map(str(spill.folder / f"{spill.key}.arrow"))  # closed with the last that refers to it
        self.reader, self.size = pa.ipc.open_file(source), source.size()
        self.tasks = load_array(spill.folder, spill.key, "tasks") if spill.task < 0 else None

    def find(self, first: int, end: int) -> Iterator[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]:
        """Find the documents whose places are in a range: rows, and the place and the input task of each."""
        begin = 0
        for number, stop in enumerate(self.ends):
            low, high = np.searchsorted(self.rows[begin:stop], np.array([first, end], dtype=np.uint64)).tolist()
            if high > low:
                places = np.asarray(self.rows[begin + low : begin + high])
                tasks = np.full(high - low, self.spill.task)
                if self.tasks is not None:
                    tasks = np.asarray(self.tasks[begin + low : begin + high]).astype(np.int64)
                yield self.reader.get_batch(number).slice(low, high - low), places, tasks
            begin = stop


def merge_spills(groups: list[list[Spill]], output: Path, wide: bool, number: int, progress: Progress) -> None:
    """Merge the group of a number into ``00000.arrow`` and what belongs to it, by a range of places at a time."""
    output.mkdir(parents=True, exist_ok=True)
    spills, key = [OpenSpill(spill) for spill in groups[number]], f"{number:05d}"
    rows, tasks, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)], []
    partial, schema = output / f"{key}.arrow.tmp", make_spill_schema(wide)
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for first, end in cut_places(spills):
            found = [piece for spill in spills for piece in spill.find(first, end)]
            (batch,) = pa.Table.from_batches([piece for piece, _, _ in found]).combine_chunks().to_batches()
            places = np.concatenate([places for _, places, _ in found])
            order = np.argsort(places, kind="stable")
            file.write_batch(batch.take(pa.array(order)))
            rows.append(places[order])
            tasks.append(np.concatenate([of_rows for _, _, of_rows in found])[order].astype(np.uint32))
            sizes.append(len(order))
            progress.add(len(order))
    np.save(output / f"{key}.rows.npy", np.concatenate(rows))
    np.save(output / f"{key}.tasks.npy", np.concatenate(tasks))
    np.save(output / f"{key}.batches.npy", np.array(sizes, dtype=np.uint32))
    partial.replace(output / f"{key}.arrow")


def cut_places(spills: list[OpenSpill]) -> list[tuple[int, int]]:
    """Cut all places into ranges of about SEGMENT_BYTES of documents each; none is without a document."""
    places = np.sort(np.concatenate([np.empty(0, np.uint64), *(spill.rows for spill in spills)]))
    if not len(places):
        return []
    count = min(len(places), 1 + sum(spill.size for spill in spills) // SEGMENT_BYTES)
    firsts = np.unique(places[np.arange(count) * len(places) // count]).tolist()
    return list(zip(firsts, [*firsts[1:], 1 << 63], strict=True))


def read_bucket(
    spills: list[Spill], buckets: Buckets, bucket: int, wide: bool, starts: np.ndarray, is_shared: np.ndarray
) -> tuple[pa.RecordBatch | None, np.ndarray]:
    """Read the documents of a bucket, in the order of the input, and the input task of each, ``[D]``.

    starts: ``[T + 1]`` the number, among all, of each task's first document
    """
    first, end = buckets.find_range(bucket)
    held_out = int(bucket >= buckets.train)
    found, task_of = [], []
    for spill in spills:
        opened = OpenSpill(spill)
        for split in SPLITS[held_out]:
            for rows, _, tasks in opened.find((split << 32) + first, (split << 32) + end):
                numbers = starts[tasks] + rows.column("number").to_numpy()
                mine = find_held_out(rows.column("held_out").to_numpy(), is_shared[numbers]) == held_out
                found.append(rows if mine.all() else rows.filter(pa.array(mine)))
                task_of.append(tasks[mine])
    if not sum(map(len, task_of)):
        return None, np.empty(0, dtype=np.int64)
    (rows,) = pa.Table.from_batches(found, make_spill_schema(wide)).combine_chunks().to_batches()
    tasks = np.concatenate(task_of)
    order = np.lexsort((rows.column("number").to_numpy(), tasks))
    rows = rows.take(pa.array(order))
    place = rows.schema.get_field_index("held_out")
    split = pa.array(np.full(rows.num_rows, held_out, dtype=np.uint8))
    columns = [*rows.columns[:place], split, *rows.columns[place + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), tasks[order]
