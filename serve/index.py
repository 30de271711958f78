"""Opens an index: returns answers by row, and the rows that match questions best, by vectors or by BM25.

Vectors are stored as float16. Scores are computed from them in float32.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import bm25s
import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.bm25 import index_words

from .answers import Answer
from .folder import MANIFEST, REBUILD, check_files, read_manifest

TEXTS, WORDS, MATRIX = "answers.arrow", "words", "vectors.npy"
SCHEMA = pa.schema([(name, pa.large_string()) for name in Answer._fields])
BATCH = 50_000  # rows of a record batch
MAX_TRIES = 3  # an index may be changed while it is being opened


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
        self.texts = map_texts(data / TEXTS)
        self.matrix = np.load(data / MATRIX, mmap_mode="c")  # copy-on-write: torch warns of read-only arrays
        size = (self.manifest.rows, self.manifest.model["dimension"])
        if self.matrix.shape != size or len(self.texts) != size[0]:
            raise KinspanError(f"{self.folder / MANIFEST} does not fit its files: {REBUILD}")
        self.words = map_words(data / WORDS)

    def __len__(self) -> int:
        return self.manifest.rows

    def answer(self, row: int) -> Answer:
        return Answer(*(self.texts.column(name)[int(row)].as_py() for name in Answer._fields))


def map_words(folder: Path) -> bm25s.BM25 | None:
    """Maps a BM25 index, for ``find_by_words``; None if no answer contains a word."""
    return bm25s.BM25.load(str(folder), mmap=True, show_progress=False) if folder.is_dir() else None


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
