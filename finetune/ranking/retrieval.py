"""Searches texts by words and by vectors: exact rankings, and their fusion by ranks."""

from collections.abc import Sequence

import bm25s
import numpy as np
import torch

from finetune.data.passages import RankedRows
from finetune.evaluation.bm25 import choose_language, cut_words, index_words

from .fusion import RANK_OFFSET

BLOCK_BYTES = 4 * 1024**2  # float32 rows that are converted and multiplied at once, to fit the processor's cache
QUERIES = 64  # questions whose scores of all texts are in memory at once


def rank_by_words(texts: Sequence[str], questions: Sequence[str], k: int, language: str | None) -> list[RankedRows]:
    """Returns the k texts that BM25 ranks highest for each question; ``language``: see ``choose_language``."""
    language = choose_language(language, texts)
    index = index_words(texts, language)
    return [find_by_words(index, question, k, language) for question in questions]


def find_by_words(index: bm25s.BM25 | None, question: str, k: int, language: str) -> RankedRows:
    """Returns up to k rows that share a word with the question, and their BM25 scores."""
    words = cut_words([question], language)[0]
    ids = index.get_tokens_ids(words) if index and words else []
    if not (index and ids):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    scores = index.get_scores_from_ids(ids)
    best = take_best(scores, k)
    best = best[scores[best] > 0]
    return best, scores[best]


def find_exactly(matrix: np.ndarray, queries: np.ndarray, k: int) -> list[RankedRows]:
    """Returns the k rows of ``matrix`` with the highest dot product with each of ``queries``, float32."""
    if len(queries) > QUERIES:
        blocks = (queries[first : first + QUERIES] for first in range(0, len(queries), QUERIES))
        return [ranking for block in blocks for ranking in find_exactly(matrix, block, k)]
    vectors, columns = torch.from_numpy(matrix), torch.from_numpy(np.ascontiguousarray(queries)).T
    products = torch.empty(len(matrix), len(queries))
    step = max(1, BLOCK_BYTES // (4 * matrix.shape[1]))
    block = torch.empty(min(step, len(matrix)), matrix.shape[1])
    for first in range(0, len(matrix), step):
        rows = vectors[first : first + step]
        torch.mm(block[: len(rows)].copy_(rows), columns, out=products[first : first + step])
    scores = np.ascontiguousarray(products.numpy().T)
    return [(best := take_best(query_scores, k), query_scores[best]) for query_scores in scores]


def take_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the indices of the k highest scores, best first; ties are broken by index."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    kth = np.partition(scores, len(scores) - k)[len(scores) - k]  # the k-th highest score
    above, equal = np.flatnonzero(scores > kth), np.flatnonzero(scores == kth)
    best = np.concatenate([above, equal[: k - len(above)]])
    return best[np.lexsort((best, -scores[best]))]


def fuse(lists: Sequence[RankedRows], k: int) -> RankedRows:
    """Returns the k rows with the highest sums of 1 / (RANK_OFFSET + rank) over the lists; ties keep their order."""
    sums: dict[int, float] = {}
    for rows, _ in lists:
        for rank, row in enumerate(rows.tolist(), 1):
            sums[row] = sums.get(row, 0.0) + 1 / (RANK_OFFSET + rank)
    order = sorted(sums, key=lambda row: -sums[row])[:k]
    return np.array(order, dtype=np.int64), np.array([sums[row] for row in order])
