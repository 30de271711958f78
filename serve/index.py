"""Opens an index: returns answers by row, and the rows that match questions best, by vectors or by BM25.

Vectors are stored as float16. Scores are computed from them in float32, in exact and in approximate search.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import bm25s
import numpy as np
import pyarrow as pa
import torch

from data_pipeline.core.errors import KinspanError, quote_error
from finetune.data.passages import RankedRows
from finetune.evaluation.bm25 import index_words
from finetune.ranking.retrieval import find_exactly, take_best

from .answers import Answer
from .folder import MANIFEST, REBUILD, check_files, read_manifest

if TYPE_CHECKING:
    import usearch.index

TEXTS, WORDS, MATRIX, GRAPH = "answers.arrow", "words", "vectors.npy", "graph.usearch"
SCHEMA = pa.schema([(name, pa.large_string()) for name in Answer._fields])
BATCH = 50_000  # rows of a record batch
MAX_TRIES = 3  # an index may be changed while it is being opened
# Links of each node of the graph, and nodes visited per insertion and per search. Chosen for a recall@100 of .98 at
# 27,413 vectors, see benchmarks/RESULTS.md
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 256


class Index:
    """Maps the files of an index into memory; later changes of the index do not affect it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for attempt in range(MAX_TRIES):
            self.manifest = read_manifest(self.folder)
            try:
                self._open()
                return
            except (KinspanError, OSError):
                if attempt == MAX_TRIES - 1 or read_manifest(self.folder) == self.manifest:
                    raise

    def _open(self) -> None:
        data = check_files(self.folder, self.manifest)
        self.texts, self.matrix = map_texts(data / TEXTS), map_matrix(data / MATRIX)
        size = (self.manifest.rows, self.manifest.model["dimension"])
        if self.matrix.shape != size or len(self.texts) != size[0]:
            raise KinspanError(f"{self.folder / MANIFEST} does not fit its files: {REBUILD}")
        self.graph = map_graph(data / GRAPH, size[1]) if self.manifest.settings["approximate"] else None
        self.words = map_words(data / WORDS)

    def __len__(self) -> int:
        return self.manifest.rows

    def answer(self, row: int) -> Answer:
        return Answer(*(self.texts.column(name)[int(row)].as_py() for name in Answer._fields))

    def find_nearest(self, queries: np.ndarray, k: int, exact: bool = False) -> list[RankedRows]:
        """Returns the k nearest rows of each query ``[q, dimension]``. ``exact``: do not use the approximate index"""
        if self.graph is None or exact:
            return find_exactly(self.matrix, queries, k)
        return [find_approximately(self.graph, self.matrix, query, k) for query in queries]


def find_approximately(graph: "usearch.index.Index", matrix: np.ndarray, query: np.ndarray, k: int) -> RankedRows:
    """Returns the k rows of ``matrix`` that are nearest to a query ``[dimension]``, of which some may be missed."""
    rows = graph.search(query, min(k, len(matrix)), threads=1).keys.astype(np.int64)
    scores = matrix[rows].astype(np.float32) @ query
    best = take_best(scores, k)
    return rows[best], scores[best]


def map_words(folder: Path) -> bm25s.BM25 | None:
    """Maps a BM25 index, for ``find_by_words``; None if no answer contains a word."""
    return bm25s.BM25.load(str(folder), mmap=True, show_progress=False) if folder.is_dir() else None


def map_matrix(path: Path) -> np.ndarray:
    """Maps a matrix copy-on-write: torch warns of read-only arrays."""
    return np.load(path, mmap_mode="c")


def make_graph(dimension: int) -> "usearch.index.Index":
    import usearch.index

    return usearch.index.Index(
        ndim=dimension,
        metric="ip",
        dtype="f16",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )


def map_graph(path: Path, dimension: int) -> "usearch.index.Index":
    graph = make_graph(dimension)
    graph.view(str(path))
    return graph


def write_graph(path: Path, matrix: np.ndarray, advance: Callable[[int], object] = lambda rows: None) -> None:
    """Builds an approximate index of the rows; ``advance`` is called with the number of rows added."""
    graph = make_graph(matrix.shape[1])
    for first in range(0, len(matrix), 4096):
        rows = np.asarray(matrix[first : first + 4096])
        graph.add(np.arange(first, first + len(rows), dtype=np.uint64), rows, threads=torch.get_num_threads())
        advance(len(rows))
    try:
        graph.save(str(path))
    except RuntimeError as error:
        raise KinspanError(f"{path} cannot be written: {quote_error(error)}") from error


def write_words(folder: Path, texts: list[str], language: str) -> None:
    """Writes the BM25 index of the texts; no folder if they contain no words."""
    index = index_words(texts, language)
    if index is not None:
        index.save(str(folder), show_progress=False)


def write_texts(path: Path, answers: Iterable[Answer]) -> None:
    rows = iter(answers)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        while batch := list(islice(rows, BATCH)):
            columns = [pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))


def map_texts(path: Path) -> pa.Table:
    """Returns the answers as a table whose columns are views of the file."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def iterate_answers(table: pa.Table) -> Iterator[Answer]:
    """Yields the answers of a table, in the order of its rows."""
    for batch in table.to_batches():
        yield from (Answer(**row) for row in batch.to_pylist())
