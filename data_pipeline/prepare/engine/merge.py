"""Reading a bucket off the files that input tasks have left, and merging many such files into a few.

A file is opened once for each bucket: 6,000 files and 1,500 buckets would be nine million times. So files are merged in
rounds, ``MERGE_FILES`` into one of the same form, until there are few enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from .spill import SEGMENT_BYTES, Buckets, find_held_out, load_array, make_spill_schema
from .stage import Progress

MERGE_FILES = 128  # that become one
MAX_OPENS = 1 << 17  # of files, by all buckets together
SPLITS = ((0, 1, 2), (1, 2, 3))  # what ``find_held_out`` can make a training, or a held-out document of


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


@dataclass(frozen=True)
class MergeSpills:
    """Merges the group of a number into ``00000.arrow`` and what belongs to it, by a range of places at a time."""

    groups: list[list[Spill]]
    output: Path
    wide: bool

    def __call__(self, number: int, progress: Progress) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        spills, key = [OpenSpill(spill) for spill in self.groups[number]], f"{number:05d}"
        rows, tasks, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)], []
        partial, schema = self.output / f"{key}.arrow.tmp", make_spill_schema(self.wide)
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
        np.save(self.output / f"{key}.rows.npy", np.concatenate(rows))
        np.save(self.output / f"{key}.tasks.npy", np.concatenate(tasks))
        np.save(self.output / f"{key}.batches.npy", np.array(sizes, dtype=np.uint32))
        partial.replace(self.output / f"{key}.arrow")


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
    """Read the documents of a bucket, ``[D]``, in the order of the input, and the input task of each, ``[D]``.

    starts:    ``[T + 1]`` the number, among all, of each task's first document
    is_shared: ``[documents]`` as of ``find_held_out``. The column ``held_out`` comes as that function has it
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
