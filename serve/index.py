"""An index, opened: answers by their rows, and the rows that are nearest to questions, by vectors or by words."""

from itertools import accumulate
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError

from .answers import Answer
from .folder import AGAIN, MANIFEST, check_part, read_manifest, read_removed
from .nearest import GRAPH, MATRIX, Graph, find_exactly, map_matrix
from .texts import map_parts, take_answer
from .words import Words

Found = tuple[np.ndarray, np.ndarray]  # rows of the index, the best first, and their scores
TRIES = 3  # an index may be changed while it is being opened


class Index:
    """Everything in it is mapped into memory. It stays as it was opened, whatever changes it later.

    alive: ``[rows]`` whether each row counts; None where no row was removed

    Raises KinspanError where there is no index, or a file of it is missing or damaged.
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
        for part in self.manifest.every_part:
            check_part(self.folder, part)
        places = [self.folder / part.name for part in self.manifest.parts]
        self.texts = map_parts(places)
        self.matrices = [map_matrix(place / MATRIX) for place in places]
        sizes = [(part.rows, self.manifest.model["dimension"]) for part in self.manifest.parts]
        if [matrix.shape for matrix in self.matrices] != sizes or len(self.texts) != self.manifest.rows:
            raise KinspanError(f"{self.folder / MANIFEST} does not fit its files: {AGAIN}")
        self.starts = list(accumulate((part.rows for part in self.manifest.parts), initial=0))
        self.graphs = None
        if self.manifest.settings["approximate"]:
            self.graphs = [Graph(p / GRAPH, m) for p, m in zip(places, self.matrices, strict=True)]
        assert self.manifest.words
        self.words = Words(self.folder / self.manifest.words.name)
        removed = read_removed(self.folder, self.manifest)
        self.alive = None
        if len(removed):
            self.alive = np.ones(self.manifest.rows, dtype=bool)
            self.alive[removed] = False

    def __len__(self) -> int:
        return self.manifest.count_answers()

    def answer(self, row: int) -> Answer:
        return take_answer(self.texts, int(row))

    def find_nearest(self, queries: np.ndarray, k: int, exact: bool = False) -> list[Found]:
        """Of each query ``[q, dimension]`` the k nearest answers.

        exact: all vectors are compared, also where there is an approximate index
        """
        found: list[list[Found]] = [[] for _ in queries]
        for part, (start, matrix) in enumerate(zip(self.starts, self.matrices, strict=False)):
            alive = None if self.alive is None else self.alive[start : start + len(matrix)]
            if self.graphs is None or exact:
                here = find_exactly(matrix, queries, k, alive)
            else:
                here = [self.graphs[part].find(query, k, alive) for query in queries]
            for own, (rows, scores) in zip(found, here, strict=True):
                own.append((rows + start, scores))
        return [_merge(own, k) for own in found]

    def find_words(self, question: str, k: int) -> Found:
        """The k best answers by BM25; only those that share a word with the question."""
        return self.words.find(question, k, self.alive)


def _merge(found: list[Found], k: int) -> Found:
    if len(found) == 1:
        return found[0]
    rows, scores = (np.concatenate(column) for column in zip(*found, strict=True))
    best = np.lexsort((rows, -scores))[:k]
    return rows[best], scores[best]
