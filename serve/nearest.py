"""The vectors of an index: exact search over the mapped matrix, and an approximate index by usearch.

Vectors are kept as float16, half the bytes of float32. Scores are computed from them in float32, whichever way they
were found.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.core.errors import KinspanError, quote_error

MATRIX, GRAPH = "vectors.npy", "graph.usearch"
# Of float32 rows that are made at once, by torch, which is eight times as fast at that as NumPy: they stay in the cache
BLOCK_BYTES = 4 * 1024**2
# Of the graph: links of a node, and nodes that are looked at when one is added, and in a search. Chosen for a
# recall@100 of .98 at 27,413 vectors, see benchmarks/RESULTS.md
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 256


def map_matrix(path: Path) -> np.ndarray:
    """Nothing that is written to the array reaches the file; torch takes no array that cannot be written to."""
    return np.load(path, mmap_mode="c")


def take_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the k highest scores, the best first; of equal ones those that come first."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k]
    above, equal = np.flatnonzero(scores > lowest), np.flatnonzero(scores == lowest)
    places = np.concatenate([above, equal[: k - len(above)]])
    return places[np.lexsort((places, -scores[places]))]


def find_exactly(matrix: np.ndarray, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the k rows of the highest product with each query, the best first, and their scores.

    matrix:  ``[n, dimension]`` float16
    queries: ``[q, dimension]`` float32
    """
    every, wanted = torch.from_numpy(matrix), torch.from_numpy(np.ascontiguousarray(queries)).T
    products = torch.empty(len(matrix), len(queries))
    step = max(1, BLOCK_BYTES // (4 * matrix.shape[1]))
    block = torch.empty(min(step, len(matrix)), matrix.shape[1])
    for first in range(0, len(matrix), step):
        rows = every[first : first + step]
        torch.mm(block[: len(rows)].copy_(rows), wanted, out=products[first : first + step])
    scores = np.ascontiguousarray(products.numpy().T)
    return [(best := take_best(of_query, k), of_query[best]) for of_query in scores]


def write_graph(path: Path, matrix: np.ndarray, advance: Callable[[int], Any] = lambda rows: None) -> None:
    """Builds an approximate index of the rows; ``advance`` counts those that were added."""
    graph = _make_graph(matrix.shape[1])
    for first in range(0, len(matrix), 4096):
        rows = np.asarray(matrix[first : first + 4096])
        graph.add(np.arange(first, first + len(rows), dtype=np.uint64), rows, threads=torch.get_num_threads())
        advance(len(rows))
    try:
        graph.save(str(path))
    except RuntimeError as error:
        raise KinspanError(f"{path} cannot be written: {quote_error(error)}") from error


def expect_usearch() -> Any:
    """usearch's class of indices. Raises KinspanError where it is not installed."""
    try:
        from usearch.index import Index
    except ImportError as error:
        raise KinspanError("an approximate index needs usearch: pip install 'kinspan[serve]'") from error
    return Index


def _make_graph(dimension: int) -> Any:
    sizes = {"connectivity": CONNECTIVITY, "expansion_add": EXPANSION_ADD, "expansion_search": EXPANSION_SEARCH}
    return expect_usearch()(ndim=dimension, metric="ip", dtype="f16", **sizes)


class Graph:
    """An approximate index, mapped into memory."""

    def __init__(self, path: Path, matrix: np.ndarray) -> None:
        self._graph = _make_graph(matrix.shape[1])
        self._graph.view(str(path))
        self._graph.expansion_search = EXPANSION_SEARCH
        self._matrix = matrix

    def find(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns what ``find_exactly`` does for one query ``[dimension]``, but some rows may be missing."""
        rows = self._graph.search(query, min(k, len(self._matrix)), threads=1).keys.astype(np.int64)
        scores = self._matrix[rows].astype(np.float32) @ query
        best = take_best(scores, k)
        return rows[best], scores[best]
