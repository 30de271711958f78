"""The nearest vectors and the best by words."""

import numpy as np
import pytest

from finetune.evaluation.bm25 import score_bm25
from finetune.ranking.retrieval import find_by_words, find_exactly, take_best
from serve.index import map_words, write_words
from serve.search import make_candidates


@pytest.mark.parametrize("k", [1, 100, 5000])
def test_the_nearest_are_found(k, monkeypatch):
    rng = np.random.default_rng(0)
    near = rng.normal(size=(100, 32))[rng.integers(100, size=3000)] + 0.5 * rng.normal(size=(3000, 32))
    matrix = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float16)
    queries = (matrix[::150] + 0.1 * rng.normal(size=(20, 32))).astype(np.float32)
    monkeypatch.setattr("finetune.ranking.retrieval.BLOCK_BYTES", 50_000)  # several blocks
    products = matrix.astype(np.float64) @ queries.T.astype(np.float64)
    for query, (rows, scores) in enumerate(find_exactly(matrix, queries, k)):
        expected = np.argsort(-products[:, query], kind="stable")[:k]
        assert np.allclose(scores, products[expected, query], atol=1e-5)
        assert np.allclose(products[rows, query], scores, atol=1e-5)
        assert len(set(rows.tolist())) == len(expected)


def test_best_of_equal_scores_are_the_first():
    scores = np.array([1.0, 3, 2, 3, 2, 2], dtype=np.float32)
    assert take_best(scores, 4).tolist() == [1, 3, 2, 4]
    assert take_best(scores, 9).tolist() == [1, 3, 2, 4, 5, 0]


def test_words_are_bm25s(tmp_path):
    texts = ["the river rose", "a stone bridge over the river", "silver music", "river river stone"]
    write_words(tmp_path, texts, "en")
    words = map_words(tmp_path)
    rows, scores = find_by_words(words, "Stones, rivers?", 10, "en")
    every = score_bm25(make_candidates(["Stones, rivers?"], [texts]))
    expected = {row: score for row, score in enumerate(every) if score > 0}
    assert dict(zip(rows.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)
    assert rows[0] == 3
    for nothing in ("", "of any", "nonesuch", "?!"):
        assert not len(find_by_words(words, nothing, 3, "en")[0])
    write_words(tmp_path / "none", ["?", "!"], "en")
    assert not len(find_by_words(map_words(tmp_path / "none"), "a question", 3, "en")[0])
