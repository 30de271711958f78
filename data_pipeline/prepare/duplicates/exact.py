"""Documents and paragraphs that occur more than once, found by their hashes, a range of hashes at a time.

The first in the order of the input is kept, of paragraphs the first in a document that is kept (``survivors``),
whatever task or process comes first. Hashes have 64 bits: among a billion paragraphs, one is expected to be taken for
another with a chance of 3%.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.prepare.spill import DOCUMENT, PARAGRAPH, Buckets, find_held_out, load_array
from data_pipeline.prepare.tasks import Progress

RANGE_DOCUMENTS, RANGE_PARAGRAPHS = 1 << 23, 1 << 22  # that one range of hashes has, about: 200 MB in memory
KEPT, DUPLICATE, NEAR_DUPLICATE, TOO_SHORT = 0, 1, 2, 3  # what becomes of a document
SHARED_ID = 10  # documents of different texts with one id: then it names none of them
REPEATED, BOILERPLATE = 1, 2  # why a paragraph is removed
REMOVED = np.dtype(
    [("bucket", "<u4"), ("task", "<u4"), ("number", "<u4"), ("paragraph", "<u4"), ("chars", "<u4"), ("why", "u1")]
)


@dataclass(frozen=True)
class Inputs:
    """What the input tasks have left in ``folder``, see ``spill``: of each its key, and how many documents it has."""

    folder: Path
    keys: list[str]
    counts: list[int]

    @cached_property
    def starts(self) -> np.ndarray:
        """``[T + 1]`` the number, among all documents, of each task's first document."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    def load(self, task: int, name: str) -> np.ndarray:
        return load_array(self.folder, self.keys[task], name)


def find_documents(inputs: Inputs, output: Path, num_ranges: int, number: int, progress: Progress) -> None:
    """Find documents whose text an earlier one has, of one range of hashes: ``documents-00000.npy`` has numbers."""
    found, documents = _read_documents(inputs, "text", number, num_ranges)
    order = np.argsort(found["text"], kind="stable")
    repeated = np.flatnonzero(found["text"][order][1:] == found["text"][order][:-1]) + 1
    save_whole(output / f"documents-{number:05d}.npy", np.sort(documents[order[repeated]]))


def find_shared_ids(inputs: Inputs, output: Path, num_ranges: int, number: int, progress: Progress) -> None:
    """Find documents whose id SHARED_ID or more documents of other texts have: ``shared-00000.npy`` has numbers."""
    found, documents = _read_documents(inputs, "id", number, num_ranges)
    pairs = np.unique(found[["id", "text"]])
    ids, texts = np.unique(pairs["id"], return_counts=True)
    shared = np.isin(found["id"], ids[texts >= SHARED_ID])
    save_whole(output / f"shared-{number:05d}.npy", documents[shared])


def _read_documents(inputs: Inputs, name: str, number: int, num_ranges: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the documents whose hash of this name is in a range: ``[N]`` DOCUMENT, and the number of each among all."""
    found, documents = [np.empty(0, DOCUMENT)], [np.empty(0, np.int64)]
    low, high = _range_of(number, num_ranges)
    for task in range(len(inputs.keys)):
        of_task = inputs.load(task, "documents")
        mine = np.flatnonzero((of_task[name] >= low) & (of_task[name] <= high))
        found.append(of_task[mine])
        documents.append(mine + inputs.starts[task])
    return np.concatenate(found), np.concatenate(documents)


def find_paragraphs(
    inputs: Inputs,
    dedup_status: Path,
    shared: Path,
    buckets: Buckets,
    output: Path,
    num_ranges: int,
    boilerplate: int,
    number: int,
    progress: Progress,
) -> None:
    """Find paragraphs of one range of hashes that are to be removed: ``paragraphs-00000.npy`` has REMOVED, sorted.

    dedup_status: a file of ``[documents]`` uint8. Only documents that are kept hold a copy; those
                 that are too short without their repeated paragraphs still count for ``boilerplate``
    boilerplate: in how many documents a paragraph must occur to be removed from all of them; 0 for never
    shared:      the file of documents that share their id, and ``buckets``, which tell the bucket of each
    """
    copies = read_copies(inputs, dedup_status, number, num_ranges, boilerplate)
    kept = np.flatnonzero(copies.dedup_status == KEPT)
    _, first = np.unique(copies.group[kept], return_index=True)
    why = np.full(len(kept), REPEATED, dtype=np.uint8)
    why[first] = 0
    why[copies.in_many[kept]] = BOILERPLATE
    removed = kept[why > 0]
    places, document = copies.found[removed], copies.document[removed]
    out = np.empty(len(removed), dtype=REMOVED)
    out["task"] = np.searchsorted(inputs.starts, document, side="right") - 1
    out["why"] = why[why > 0]
    is_shared = np.load(shared, mmap_mode="r")
    for name in ("number", "paragraph", "chars"):
        out[name] = places[name]
    for task in np.unique(out["task"]).tolist():
        mine = out["task"] == task
        places = inputs.load(task, "documents")["place"][out["number"][mine]]
        splits = (places >> np.uint64(32)).astype(np.uint8)
        held_out = find_held_out(splits, is_shared[inputs.starts[task] + out["number"][mine]])
        out["bucket"][mine] = buckets.place(places & np.uint64(0xFFFFFFFF), held_out)
    order = np.lexsort([out[name] for name in ("paragraph", "number", "task", "bucket")])
    output.mkdir(parents=True, exist_ok=True)
    save_whole(output / f"paragraphs-{number:05d}.npy", out[order])


@dataclass(frozen=True)
class Copies:
    """The N paragraphs of a range of hashes, those of one text side by side, in the order of the input.

    found:    ``[N]`` PARAGRAPH
    document: ``[N]`` the number of each one's document, among all
    dedup_status:     ``[N]`` what becomes of that
    group:    ``[N]`` numbers the texts
    in_many:  ``[N]`` whether the text stands in so many documents that it is removed from all
    """

    found: np.ndarray
    document: np.ndarray
    dedup_status: np.ndarray
    group: np.ndarray
    in_many: np.ndarray


def read_copies(inputs: Inputs, dedup_status: Path, number: int, num_ranges: int, boilerplate: int) -> Copies:
    """Read the paragraphs of a range of hashes, but for those of documents that repeat others."""
    parts, documents, fates = [np.empty(0, PARAGRAPH)], [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    of_document = np.load(dedup_status, mmap_mode="r")
    low, high = _range_of(number, num_ranges)
    for task in range(len(inputs.keys)):
        of_task = inputs.load(task, "paragraphs")
        start = int(np.searchsorted(of_task["hash"], low, side="left"))
        end = int(np.searchsorted(of_task["hash"], high, side="right"))
        mine = np.asarray(of_task[start:end])
        document = mine["number"] + inputs.starts[task]
        counts = np.isin(of_document[document], (KEPT, TOO_SHORT))
        parts.append(mine[counts])
        documents.append(document[counts])
        fates.append(of_document[document[counts]])
    found = np.concatenate(parts)
    order = np.argsort(found["hash"], kind="stable")
    found, document = found[order], np.concatenate(documents)[order]
    is_new = np.append(True, found["hash"][1:] != found["hash"][:-1])[: len(found)]
    group = np.cumsum(is_new) - 1
    new_document = is_new | np.append(True, np.diff(document) != 0)[: len(found)]
    spread = np.bincount(group, new_document).astype(np.int64)  # documents that each text occurs in
    in_many = spread[group] >= boilerplate if boilerplate else np.zeros(len(found), dtype=bool)
    return Copies(found, document, np.concatenate(fates)[order], group, in_many)


def _range_of(number: int, num_ranges: int) -> tuple[np.uint64, np.uint64]:
    bounds = [2**64 * k // num_ranges for k in (number, number + 1)]
    return np.uint64(bounds[0]), np.uint64(bounds[1] - 1)


def save_whole(path: Path, values: np.ndarray) -> None:
    """Save an array so that the file is whole or not there."""
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.save(file, values)
    partial.replace(path)


def read_removed(folder: Path, num_ranges: int, bucket: int) -> np.ndarray:
    """Read which paragraphs are to be removed from a bucket: ``[N]`` REMOVED."""
    found = [np.empty(0, REMOVED)]
    for number in range(num_ranges):
        of_range = np.load(folder / f"paragraphs-{number:05d}.npy", mmap_mode="r")
        start = int(np.searchsorted(of_range["bucket"], bucket, side="left"))
        end = int(np.searchsorted(of_range["bucket"], bucket, side="right"))
        found.append(np.asarray(of_range[start:end]))
    return np.concatenate(found)
