"""BM25 over the answers' texts, by bm25s, mapped into memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from finetune.evaluation.bm25 import cut_words, index_words
from finetune.ranking.best import take_best

ROW_OF = "row_of.npy"  # of each document of BM25 its row of the index
DATA = "data.csc.index.npy"


def write_words(folder: Path, texts: Iterable[str], rows: np.ndarray) -> None:
    """Counts the words of the texts, which are these rows of the index.

    Words and settings are those of ``finetune.evaluation.bm25``. Texts without a word leave nothing but ROW_OF.
    """
    np.save(folder / ROW_OF, rows.astype(np.int64))
    index = index_words(list(texts))
    if index is not None:
        index.save(str(folder), show_progress=False)


class Words:
    """The words of an index, opened."""

    def __init__(self, folder: Path) -> None:
        self._row_of = np.load(folder / ROW_OF, mmap_mode="r")
        self._index: Any = None
        if (folder / DATA).is_file():
            self._index = bm25s.BM25.load(str(folder), mmap=True, show_progress=False)

    def find(self, question: str, k: int, alive: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and BM25 scores of the k best answers that share a word with the question, the best first.

        alive: ``[rows]`` whether each row counts; None where all do
        """
        words = cut_words([question])[0] if self._index else []
        ids = self._index.get_tokens_ids(words) if words else []
        if not ids:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        scores = self._index.get_scores_from_ids(ids)
        if alive is not None:
            scores = np.where(alive[self._row_of], scores, 0)
        best = take_best(scores, k)
        best = best[scores[best] > 0]
        return np.asarray(self._row_of[best]), scores[best]
