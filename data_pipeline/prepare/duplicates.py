"""Finds repeated documents and paragraphs by hash, and near-duplicate documents with datatrove's MinHash.

The first copy in input order is kept; the paragraphs of documents that repeat another do not count. Hashes have 64
bits: among a billion paragraphs, the chance that two different ones have the same hash is 3%.

Two documents whose sets of word 5-grams have a Jaccard similarity of s are near-duplicates with a probability of
1 - (1 - s^8)^14, which is .06 at .5, .92 at .8 and .9999 at .9 (Broder, 1997; the figures are datatrove's defaults).
"""

import resource
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.matching import fold_characters, space_out

from .spill import DOCUMENT, PARAGRAPH, Spills, hash_string, save_atomically

if TYPE_CHECKING:
    from datatrove.pipeline.dedup.minhash import MinhashConfig

RANGE_DOCUMENTS, RANGE_PARAGRAPHS = 1 << 23, 1 << 22  # about how many are in a range of hashes, to use 200 MB
KEPT, DUPLICATE, NEAR_DUPLICATE = 0, 1, 2  # dedup_status of a document
WHY_REPEATED, WHY_BOILERPLATE = 1, 2  # why a paragraph is removed
REMOVED = np.dtype([("bucket", "<u4"), ("task", "<u4"), ("number", "<u4"), ("paragraph", "<u4"), ("why", "u1")])
NUM_BANDS = 14  # of a signature; documents match if all hashes of a band are equal
SHINGLES = 1 << 14  # shingles hashed at a time, so that a book's signature does not take more memory
LINES = 1 << 9  # signatures read from a file at a time
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that no bit is lost
OPEN_FILES = 1 << 16  # limit to request, since a band has one file per input task


def find_documents(spills: Spills, output: Path, num_ranges: int, number: int) -> None:
    """Finds the documents of a range of hashes that repeat an earlier one; writes their numbers to ``00000.npy``."""
    parts, documents = [np.empty(0, DOCUMENT)], [np.empty(0, np.int64)]
    low, high = find_range(number, num_ranges)
    for task in range(len(spills.keys)):
        rows = spills.load(task, "documents")
        in_range = np.flatnonzero((rows["text"] >= low) & (rows["text"] <= high))
        parts.append(rows[in_range])
        documents.append(in_range + spills.starts[task])
    hashes = np.concatenate(parts)["text"]
    order = np.argsort(hashes, kind="stable")
    repeated = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    save_atomically(output / f"{number:05d}.npy", np.sort(np.concatenate(documents)[order[repeated]]))


def find_paragraphs(spills: Spills, status: Path, boilerplate: int, output: Path, num_ranges: int, number: int) -> None:
    """Finds the paragraphs to remove in a range of hashes; writes them to ``00000.npy``, as sorted REMOVED.

    status:      file of ``decide_documents``; only the paragraphs of KEPT documents count
    boilerplate: a paragraph in at least this many documents is removed from all of them; 0 for never
    """
    paragraphs, document = _read_paragraphs(spills, status, number, num_ranges)
    is_new = np.append(True, paragraphs["hash"][1:] != paragraphs["hash"][:-1])[: len(paragraphs)]
    reason = np.where(is_new, 0, WHY_REPEATED).astype(np.uint8)
    if boilerplate:
        text_index = np.cumsum(is_new) - 1
        in_new_document = is_new | np.append(True, np.diff(document) != 0)[: len(paragraphs)]
        num_documents = np.bincount(text_index, in_new_document).astype(np.int64)  # with each text
        reason[num_documents[text_index] >= boilerplate] = WHY_BOILERPLATE
    paragraphs, document, reason = paragraphs[reason > 0], document[reason > 0], reason[reason > 0]
    out = np.empty(len(paragraphs), dtype=REMOVED)
    out["task"] = np.searchsorted(spills.starts, document, side="right") - 1
    out["number"], out["paragraph"], out["why"] = paragraphs["number"], paragraphs["paragraph"], reason
    for task in np.unique(out["task"]).tolist():
        of_task = out["task"] == task
        out["bucket"][of_task] = spills.buckets.find(spills.load(task, "documents")["place"][out["number"][of_task]])
    order = np.lexsort([out[name] for name in ("paragraph", "number", "task", "bucket")])
    save_atomically(output / f"{number:05d}.npy", out[order])


def _read_paragraphs(spills: Spills, file: Path, number: int, num_ranges: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the paragraphs of KEPT documents in a range of hashes: ``[N]`` PARAGRAPH, sorted by hash and input order,
    and ``[N]``, the number of each paragraph's document in the whole input."""
    parts, documents = [np.empty(0, PARAGRAPH)], [np.empty(0, np.int64)]
    status = np.load(file, mmap_mode="r")
    low, high = find_range(number, num_ranges)
    for task in range(len(spills.keys)):
        rows = slice_range(spills.load(task, "paragraphs"), "hash", low, high)
        document = rows["number"] + spills.starts[task]
        is_kept = status[document] == KEPT
        parts.append(rows[is_kept])
        documents.append(document[is_kept])
    paragraphs, document = np.concatenate(parts), np.concatenate(documents)
    order = np.argsort(paragraphs["hash"], kind="stable")
    return paragraphs[order], document[order]


def find_range(number: int, num_ranges: int) -> tuple[np.uint64, np.uint64]:
    """Returns the first and the last hash of a range."""
    bounds = [2**64 * k // num_ranges for k in (number, number + 1)]
    return np.uint64(bounds[0]), np.uint64(bounds[1] - 1)


def slice_range(rows: np.ndarray, field: str, low: int | np.uint64, high: int | np.uint64) -> np.ndarray:
    """Returns the rows whose field lies in [low, high]; ``rows`` are sorted by it."""
    start, end = np.searchsorted(rows[field], low, side="left"), np.searchsorted(rows[field], high, side="right")
    return np.asarray(rows[start:end])


def read_removed(folder: Path, num_ranges: int, bucket: int) -> np.ndarray:
    """Reads the paragraphs to remove from a bucket: ``[N]`` REMOVED."""
    paragraphs = [np.empty(0, REMOVED)]
    for number in range(num_ranges):
        rows = np.load(folder / f"{number:05d}.npy", mmap_mode="r")
        paragraphs.append(slice_range(rows, "bucket", bucket, bucket))
    return np.concatenate(paragraphs)


# Near-duplicates ----------------------------------------------------------------------------------------


def write_signatures(texts: Iterator[str], folder: Path) -> None:
    """Writes the MinHash signatures of texts, a file per band: ``folder/bucket_000/00000.minhash.sig`` and so on."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature
    from datatrove.utils.text import simplify_text
    from datatrove.utils.word_tokenizers import WordTokenizer

    class NoWords(WordTokenizer):
        """Stands in for datatrove's tokenizers, which need more packages, and which ``get_shingles`` does not use."""

        word_tokenize = sent_tokenize = span_tokenize = None

    class Signature(MinhashDedupSignature):
        """Computes the signature of a document of any length in bounded memory."""

        def get_shingles(self, text: str) -> np.ndarray:
            words = space_out(simplify_text(fold_characters(text), self.config.norm_config)).split()
            return hash_shingles(words, self.config.n_grams)

        def get_signature(self, shingles: np.ndarray) -> list[list[int]]:
            pieces = [shingles[k : k + SHINGLES] for k in range(0, len(shingles), SHINGLES)]
            signatures = np.array([super(Signature, self).get_signature(piece) for piece in pieces], dtype=np.uint64)
            return signatures.min(axis=0).tolist()

    Signature(str(folder), _make_config(), NoWords()).run((Document(text=text, id="") for text in texts), 0, 1)


def hash_shingles(words: list[str], size: int) -> np.ndarray:
    """Hashes each run of ``size`` words, ``[N, 1]`` uint64, from the words' hashes: five times as fast as from text."""
    hashes = np.fromiter(map(_hash_word, words), dtype=np.uint64, count=len(words))
    runs = np.zeros(max(0, len(words) - size + 1), dtype=np.uint64)
    for k in range(size):
        runs = runs * np.uint64(MULTIPLIER) + hashes[k : k + len(runs)]
    return (runs ^ (runs >> np.uint64(32))).reshape(-1, 1)


_hash_word = lru_cache(maxsize=1 << 16)(hash_string)


def _make_config() -> "MinhashConfig":
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.utils.text import TextNormConfig
    from loguru import logger

    logger.disable("datatrove")  # which logs each step of each task
    form = TextNormConfig(norm_unicode_diacritics=False, norm_numbers=False)
    return MinhashConfig(num_buckets=NUM_BANDS, norm_config=form)


def link_signatures(folders: list[Path], output: Path) -> None:
    """Links the signatures of all input tasks to where datatrove looks for them: a folder per band."""
    for band in range(NUM_BANDS):
        (output / f"bucket_{band:03d}").mkdir(parents=True, exist_ok=True)
        for task, folder in enumerate(folders):
            link = output / f"bucket_{band:03d}/{task:05d}.minhash.sig"
            link.unlink(missing_ok=True)
            link.symlink_to((folder / f"bucket_{band:03d}/00000.minhash.sig").resolve())


def find_matches(signatures: Path, output: Path, band: int) -> None:
    """Finds, with datatrove, the pairs of documents that match in a band; writes them to ``00000_00.dups``."""
    from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if hard < 0 else min(OPEN_FILES, hard), hard))
    step = MinhashDedupBuckets(str(signatures), str(output), config=_make_config(), lines_to_buffer=LINES)
    step.run(None, band, NUM_BANDS)


def decide_documents(spills: Spills, exact: Path | None, matches: Path | None, output: Path) -> None:
    """Writes the status of each document, ``[documents]`` uint8. The first of a cluster of near-duplicates is kept.

    exact, matches: output folders of ``find_documents`` and ``find_matches``; None to keep such duplicates
    """

    def read_matches(path: Path) -> np.ndarray:
        flat = np.fromfile(path, dtype="<u4").reshape(-1, 2, 2)  # (pair, document 1 or 2, task and number)
        return spills.starts[flat[:, :, 0]] + flat[:, :, 1]

    status = np.full(int(spills.starts[-1]), KEPT, dtype=np.uint8)
    if matches:
        bands = [partial(read_matches, path) for path in sorted(matches.glob("*.dups"))]
        status[find_repeats(bands)] = NEAR_DUPLICATE
    for path in sorted(exact.glob("*.npy")) if exact else []:
        status[np.load(path)] = DUPLICATE
    save_atomically(output, status)


def find_repeats(bands: Sequence[Callable[[], np.ndarray]]) -> np.ndarray:
    """Returns the numbers of the documents that are not the first of their cluster.

    bands: functions that return the matching pairs of a band, ``[N, 2]``; one band at a time is in memory
    """
    from scipy.sparse import coo_array  # not at the top: training without an extra imports this module
    from scipy.sparse.csgraph import connected_components

    stars = np.empty((0, 2), dtype=np.int64)  # (document with a match, first document of its cluster so far)
    for load_pairs in bands:
        nodes, edges = np.unique(np.concatenate([stars, load_pairs()]), return_inverse=True)
        edges = edges.reshape(-1, 2)
        graph = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), (len(nodes), len(nodes)))
        count, cluster = connected_components(graph, directed=False)
        _, first = np.unique(cluster, return_index=True)  # nodes ascend
        stars = np.stack([nodes, nodes[first][cluster]], axis=1) if count else stars
    return stars[stars[:, 0] != stars[:, 1], 0]
