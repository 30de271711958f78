"""Finds documents and paragraphs that occur more than once by their hashes, a range of hashes at a time.

The first copy in the order of the input is kept, of paragraphs the first in a document that repeats no other. Hashes
have 64 bits: among a billion paragraphs, the chance that two different ones have the same hash is 3%.
"""

from pathlib import Path

import numpy as np

from .spill import DOCUMENT, PARAGRAPH, Buckets, Spills, save_atomically
from .tasks import Progress

RANGE_DOCUMENTS, RANGE_PARAGRAPHS = 1 << 23, 1 << 22  # about how many one range of hashes has: 200 MB in memory
KEPT, DUPLICATE, NEAR_DUPLICATE = 0, 1, 2  # dedup_status of a document
REPEATED, BOILERPLATE = 1, 2  # why a paragraph is removed
REMOVED = np.dtype([("bucket", "<u4"), ("task", "<u4"), ("number", "<u4"), ("paragraph", "<u4"), ("why", "u1")])


def find_documents(spills: Spills, output: Path, num_ranges: int, number: int, progress: Progress) -> None:
    """Finds documents whose text an earlier one has, of one range of hashes: ``00000.npy`` has their numbers."""
    parts, documents = [np.empty(0, DOCUMENT)], [np.empty(0, np.int64)]
    low, high = find_range(number, num_ranges)
    for task in range(len(spills.keys)):
        of_task = spills.load(task, "documents")
        mine = np.flatnonzero((of_task["text"] >= low) & (of_task["text"] <= high))
        parts.append(of_task[mine])
        documents.append(mine + spills.starts[task])
    texts = np.concatenate(parts)["text"]
    order = np.argsort(texts, kind="stable")
    repeated = np.flatnonzero(texts[order][1:] == texts[order][:-1]) + 1
    save_atomically(output / f"{number:05d}.npy", np.sort(np.concatenate(documents)[order[repeated]]))


def find_paragraphs(
    spills: Spills,
    dedup_status: Path,
    buckets: Buckets,
    boilerplate: int,
    output: Path,
    num_ranges: int,
    number: int,
    progress: Progress,
) -> None:
    """Finds the paragraphs of one range of hashes that are to be removed: ``00000.npy`` has REMOVED, sorted.

    dedup_status: a file of ``[documents]`` uint8; only the paragraphs of KEPT documents count
    boilerplate:  in how many documents a paragraph must occur to be removed from all of them; 0 for never
    """
    paragraphs, document = read_paragraphs(spills, dedup_status, number, num_ranges)
    is_new = np.append(True, paragraphs["hash"][1:] != paragraphs["hash"][:-1])[: len(paragraphs)]
    why = np.where(is_new, 0, REPEATED).astype(np.uint8)
    if boilerplate:
        text = np.cumsum(is_new) - 1
        in_new_document = is_new | np.append(True, np.diff(document) != 0)[: len(paragraphs)]
        num_documents = np.bincount(text, in_new_document).astype(np.int64)  # that each text occurs in
        why[num_documents[text] >= boilerplate] = BOILERPLATE
    paragraphs, document, why = paragraphs[why > 0], document[why > 0], why[why > 0]
    out = np.empty(len(paragraphs), dtype=REMOVED)
    out["task"] = np.searchsorted(spills.starts, document, side="right") - 1
    out["number"], out["paragraph"], out["why"] = paragraphs["number"], paragraphs["paragraph"], why
    for task in np.unique(out["task"]).tolist():
        mine = out["task"] == task
        out["bucket"][mine] = buckets.find(spills.load(task, "documents")["place"][out["number"][mine]])
    order = np.lexsort([out[name] for name in ("paragraph", "number", "task", "bucket")])
    save_atomically(output / f"{number:05d}.npy", out[order])


def read_paragraphs(spills: Spills, dedup_status: Path, number: int, num_ranges: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the paragraphs of one range of hashes, of KEPT documents alone.

    Returns ``[N]`` PARAGRAPH, those of one text side by side in the order of the input, and the number of each one's
    document among all.
    """
    parts, documents = [np.empty(0, PARAGRAPH)], [np.empty(0, np.int64)]
    status = np.load(dedup_status, mmap_mode="r")
    low, high = find_range(number, num_ranges)
    for task in range(len(spills.keys)):
        of_task = spills.load(task, "paragraphs")
        start = int(np.searchsorted(of_task["hash"], low, side="left"))
        end = int(np.searchsorted(of_task["hash"], high, side="right"))
        mine = np.asarray(of_task[start:end])
        document = mine["number"] + spills.starts[task]
        kept = status[document] == KEPT
        parts.append(mine[kept])
        documents.append(document[kept])
    paragraphs, document = np.concatenate(parts), np.concatenate(documents)
    order = np.argsort(paragraphs["hash"], kind="stable")
    return paragraphs[order], document[order]


def find_range(number: int, num_ranges: int) -> tuple[np.uint64, np.uint64]:
    """Finds the first and the last hash of a range."""
    bounds = [2**64 * k // num_ranges for k in (number, number + 1)]
    return np.uint64(bounds[0]), np.uint64(bounds[1] - 1)


def read_removed(folder: Path, num_ranges: int, bucket: int) -> np.ndarray:
    """Reads which paragraphs are to be removed from a bucket: ``[N]`` REMOVED."""
    paragraphs = [np.empty(0, REMOVED)]
    for number in range(num_ranges):
        of_range = np.load(folder / f"{number:05d}.npy", mmap_mode="r")
        start = int(np.searchsorted(of_range["bucket"], bucket, side="left"))
        end = int(np.searchsorted(of_range["bucket"], bucket, side="right"))
        paragraphs.append(np.asarray(of_range[start:end]))
    return np.concatenate(paragraphs)
