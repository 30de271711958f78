"""How search is measured: what stands in the table."""

from types import SimpleNamespace

import numpy as np

from benchmarks.search import find_batch, tabulate


def test_the_table_has_means_and_differences():
    ranked = [{"bi-encoder": ["b", "a"], "BM25 + m/seed-1": ["a", "b"], "BM25 + m/seed-2": ["a", "b"]}] * 20
    ranked[0] = {way: ["b", "a"] for way in ranked[0]}
    lines = tabulate(ranked, [{"a"}] * 20, {"bi-encoder": 9.0})
    assert lines[2] == "| bi-encoder | 0.500 | 0.000 | 1.000 | 1.000 |  |  | 9.0 |"
    assert lines[3].startswith("| BM25 + m | 0.975 (0.000) | 0.950 | 1.000 | 1.000 | +0.475 | <.001 |")


def test_candidates_of_the_stages_that_are_asked_for_are_ranked_again():
    first = {"bi_encoder": ["a", "b", "c", "d"], "bm25": ["c", "e", "a", "b"], "fusion": ["e", "a", "c", "b"]}
    asked = []

    def search(questions, k, first_stage):
        hits = [SimpleNamespace(id=name, text=f"text of {name}") for name in first[first_stage]]
        return SimpleNamespace(hits=[hits for _ in questions])

    def score(questions, candidates):
        asked.append(candidates)
        return [np.array([ord(text[-1]) for text in texts]) for texts in candidates]

    ranker = SimpleNamespace(cross_encoder=SimpleNamespace(score=score))
    ranked = find_batch({"": SimpleNamespace(search=search), "model": ranker}, ["q"], 3, ["bi-encoder", "BM25"])[0]
    assert asked == [[["text of a", "text of b", "text of c", "text of e"]]]  # each once
    assert ranked["bi-encoder + model"] == ["c", "b", "a", "d"]
    assert ranked["BM25 + model"] == ["e", "c", "a", "b"]
    assert sorted(ranked["BM25 & model"]) == ["a", "b", "c", "e"]
    assert ranked["BM25 & model"][0] in ("c", "e")
