"""An index, opened: answers by their rows, and the rows that are nearest to questions, by vectors or by words."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.bm25 import cut_words, index_words

from .answers import Answer
from .folder import AGAIN, MANIFEST, check_files, read_manifest
from .nearest import GRAPH, MATRIX, Graph, find_exactly, map_matrix, take_best

RankedRows = tuple[np.ndarray, np.ndarray]  # rows of the index, the best first, and their scores
TEXTS, WORDS = "answers.arrow", "words"
SCHEMA = pa.schema([(name, pa.large_string()) for name in Answer._fields])
BATCH = 50_000  # rows of a record batch
TRIES = 3  # an index may be changed while it is being opened


class Index:
    """Maps the files of an index into memory. It stays as it was opened, whatever changes it later.

    Raises KinspanError if there is no index, or a file of it is missing or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for attempt in range(TRIES):
            self.manifest = read_manifest(self.folder)
            try:
                self._open()
                return
            except (KinspanError, OSError):
                if attempt == TRIES - 1 or read_manifest(self.folder) == self.manifest:
                    raise

    def _open(self) -> None:
        data = check_files(self.folder, self.manifest)
        self.texts, self.matrix = map_texts(data / TEXTS), map_matrix(data / MATRIX)
        size = (self.manifest.rows, self.manifest.model["dimension"])
        if self.matrix.shape != size or len(self.texts) != size[0]:
            raise KinspanError(f"{self.folder / MANIFEST} does not fit its files: {AGAIN}")
        self.graph = Graph(data / GRAPH, self.matrix) if self.manifest.settings["approximate"] else None
        self.words = Words(data / WORDS)

    def __len__(self) -> int:
        return self.manifest.rows

    def answer(self, row: int) -> Answer:
        return Answer(*(self.texts.column(name)[int(row)].as_py() for name in Answer._fields))

    def find_nearest(self, queries: np.ndarray, k: int, exact: bool = False) -> list[RankedRows]:
        """Returns the k nearest answers of each query ``[q, dimension]``.

        exact: all vectors are compared, also if there is an approximate index
        """
        if self.graph is None or exact:
            return find_exactly(self.matrix, queries, k)
        return [self.graph.find(query, k) for query in queries]

    def find_words(self, question: str, k: int) -> RankedRows:
        """Returns the k best answers by BM25; only those that share a word with the question."""
        return self.words.find(question, k)


class Words:
    """BM25 over the answers' texts, by bm25s, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self._index: Any = None
        if folder.is_dir():
            self._index = bm25s.BM25.load(str(folder), mmap=True, show_progress=False)

    def find(self, question: str, k: int) -> RankedRows:
        """Returns rows and BM25 scores of the k best answers that share a word with the question."""
        words = cut_words([question])[0] if self._index else []
        ids = self._index.get_tokens_ids(words) if words else []
        if not ids:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        scores = self._index.get_scores_from_ids(ids)
        best = take_best(scores, k)
        best = best[scores[best] > 0]
        return best, scores[best]


def write_words(folder: Path, texts: list[str]) -> None:
    """Counts the words of the texts; texts without a word leave no folder."""
    index = index_words(texts)
    if index is not None:
        index.save(str(folder), show_progress=False)


def write_texts(path: Path, answers: Iterable[Answer]) -> None:
    """Writes the answers in their order."""
    rows = iter(answers)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        while batch := list(islice(rows, BATCH)):
            columns = [pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))


def map_texts(path: Path) -> pa.Table:
    """Returns the answers as a table whose columns are views of the file."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def iterate_answers(table: pa.Table, rows: Iterable[int]) -> Iterator[Answer]:
    """Yields these rows of a table, read in batches."""
    wanted = iter(rows)
    while batch := list(islice(wanted, BATCH)):
        columns = table.take(pa.array(batch, pa.int64())).to_pydict()
        yield from (Answer(*values) for values in zip(*(columns[name] for name in Answer._fields), strict=True))


def find_ids(table: pa.Table, ids: Iterable[str]) -> list[int]:
    """Returns the rows whose id is one of these, in ascending order."""
    wanted = pa.array(list(ids), pa.large_string())
    return pc.indices_nonzero(pc.is_in(table.column("id"), value_set=wanted)).to_pylist()
