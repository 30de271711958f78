"""Near-duplicate documents, by datatrove's MinHash: signatures, their matches, and which of each cluster is kept.

Two documents whose sets of 5-grams of words have a Jaccard similarity of s are found with a chance of
1 - (1 - s^8)^14, which is .06 at .5, .92 at .8 and .9999 at .9 (Broder, 1997; the figures are datatrove's defaults).
"""

import resource
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.matching import space_out

from .duplicates import DUPLICATE, KEPT, NEAR_DUPLICATE
from .spill import Spills, hash_string, save_atomically
from .tasks import Progress

NUM_BANDS = 14  # of a signature; documents match where all hashes of a band are equal
SHINGLES = 1 << 14  # that are hashed at a time: a book's signature takes no more memory than this
LINES = 1 << 9  # signatures that are read from a file at a time
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it loses no bit
OPEN_FILES = 1 << 16  # that are asked for, since one band has a file for each input task


def write_signatures(texts: Iterator[str], folder: Path) -> None:
    """Writes the signatures of documents, sorted by band, to ``folder/bucket_000/00000.minhash.sig`` and so on.

    A document is numbered by its place among ``texts``.
    """
    from datatrove.data import Document

    step = _make_signature_step(str(folder))
    step.run((Document(text=text, id="") for text in texts), 0, 1)


def _make_signature_step(folder: str) -> Any:
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature
    from datatrove.utils.text import simplify_text
    from datatrove.utils.word_tokenizers import WordTokenizer

    class NoWords(WordTokenizer):
        """Stands for datatrove's tokenizers, which need other packages, and which ``get_shingles`` does not use."""

        word_tokenize = sent_tokenize = span_tokenize = None

    class Signature(MinhashDedupSignature):
        """Signatures of documents of any length, in bounded memory."""

        def get_shingles(self, text: str) -> np.ndarray:
            words = space_out(simplify_text(text, self.config.norm_config)).split()
            return hash_shingles(words, self.config.n_grams)

        def get_signature(self, shingles: np.ndarray) -> list[list[int]]:
            pieces = [shingles[k : k + SHINGLES] for k in range(0, len(shingles), SHINGLES)]
            of_pieces = np.array([super(Signature, self).get_signature(piece) for piece in pieces], dtype=np.uint64)
            return of_pieces.min(axis=0).tolist()

    return Signature(folder, _make_config(), NoWords())


def hash_shingles(words: list[str], size: int) -> np.ndarray:
    """Hashes each run of ``size`` words: ``[N, 1]`` uint64. Words are hashed one by one, and runs by those hashes.

    datatrove joins and hashes each run as text, which takes five times as long, and fails with xxhash 4.
    """
    hashes = np.fromiter(map(_hash_word, words), dtype=np.uint64, count=len(words))
    runs = np.zeros(max(0, len(words) - size + 1), dtype=np.uint64)
    for k in range(size):
        runs = runs * np.uint64(MULTIPLIER) + hashes[k : k + len(runs)]
    return (runs ^ (runs >> np.uint64(32))).reshape(-1, 1)


_hash_word = lru_cache(maxsize=1 << 16)(hash_string)


def _make_config() -> Any:
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.utils.text import TextNormConfig

    return MinhashConfig(num_buckets=NUM_BANDS, norm_config=TextNormConfig(norm_unicode_diacritics=False))


def link_signatures(folders: list[Path], output: Path) -> None:
    """Links the signatures of all input tasks to where datatrove looks for them: a folder of each band."""
    for band in range(NUM_BANDS):
        (output / f"bucket_{band:03d}").mkdir(parents=True, exist_ok=True)
        for task, folder in enumerate(folders):
            link = output / f"bucket_{band:03d}/{task:05d}.minhash.sig"
            link.unlink(missing_ok=True)
            link.symlink_to((folder / f"bucket_{band:03d}/00000.minhash.sig").resolve())


def find_matches(signatures: Path, output: Path, number: int, progress: Progress) -> None:
    """Finds the pairs of documents that match in one band, with datatrove: ``00000_00.dups``."""
    from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if most < 0 else min(OPEN_FILES, most), most))
    step = MinhashDedupBuckets(str(signatures), str(output), config=_make_config(), lines_to_buffer=LINES)
    step.run(None, number, NUM_BANDS)


def decide_documents(spills: Spills, exact: Path | None, matches: Path | None, output: Path) -> None:
    """Decides the dedup_status of each document: ``[documents]`` uint8 in a file.

    Of documents that are connected by matches the first is kept. An exact duplicate is no near-duplicate. ``exact`` and
    ``matches`` are folders, or None where such duplicates stay.
    """

    def read_matches(path: Path) -> np.ndarray:
        """Reads pairs of documents' numbers, ``[N, 2]``."""
        flat = np.fromfile(path, dtype="<u4").reshape(-1, 2, 2)  # pair, side, (task, number)
        return spills.starts[flat[:, :, 0]] + flat[:, :, 1]

    status = np.full(int(spills.starts[-1]), KEPT, dtype=np.uint8)
    if matches:
        bands = [partial(read_matches, path) for path in sorted(matches.glob("*.dups"))]
        status[find_repeats(bands)] = NEAR_DUPLICATE
    for path in sorted(exact.glob("*.npy")) if exact else []:
        status[np.load(path)] = DUPLICATE
    save_atomically(output, status)


def find_repeats(bands: Sequence[Callable[[], np.ndarray]]) -> np.ndarray:
    """Finds the documents that are connected with an earlier one, and are not the first of their cluster.

    bands: each returns pairs of documents that match, ``[N, 2]``; one band at a time is in memory
    """
    from scipy.sparse import coo_array  # not at the top: training without an extra imports this module
    from scipy.sparse.csgraph import connected_components

    stars = np.empty((0, 2), dtype=np.int64)  # each document that has matched, and the first of its cluster so far
    for read in bands:
        nodes, edges = np.unique(np.concatenate([stars, read()]), return_inverse=True)
        edges = edges.reshape(-1, 2)
        graph = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), (len(nodes), len(nodes)))
        count, cluster = connected_components(graph, directed=False)
        _, first = np.unique(cluster, return_index=True)  # nodes ascend
        stars = np.stack([nodes, nodes[first][cluster]], axis=1) if count else stars
    return stars[stars[:, 0] != stars[:, 1], 0]
