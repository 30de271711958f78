"""Two stages: candidates by vectors, words or both, of which a cross-encoder ranks the best again."""

import shutil

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.bm25 import count_words
from finetune.ranking.embedder import Embedder
from finetune.ranking.fusion import write_fusion
from finetune.ranking.model import score_answers
from finetune.ranking.retrieval import fuse
from serve.building import build_index
from serve.questions import BI_ENCODER, BLEND, BM25, CROSS_ENCODER, FUSION
from serve.search import ReRanker, Searcher, make_candidates

QUESTIONS = ["a river of stone", "Where is music in the garden?", "number 41"]


@pytest.fixture(scope="module")
def searcher(index, cross_encoder):
    return Searcher(index, str(cross_encoder), max_length=32)


def test_candidates_come_in_the_order_of_the_cross_encoder(searcher, cross_encoder, answers):
    plain = searcher.search(QUESTIONS, k=60, rerank_k=0).hits
    ranked = searcher.search(QUESTIONS, k=60, rerank_k=10).hits
    few = searcher.search(QUESTIONS, k=5, rerank_k=10, candidates=1).hits
    assert [[hit.id for hit in hits] for hits in few] == [[hit.id for hit in hits[:5]] for hits in ranked]
    for question, before, after in zip(QUESTIONS, plain, ranked, strict=True):
        assert {hit.id for hit in after[:10]} == {hit.id for hit in before[:10]}
        assert [hit.id for hit in after[10:]] == [hit.id for hit in before[10:]]
        data = make_candidates([question], [[hit.text for hit in before[:10]]])
        expected = score_answers(str(cross_encoder), data, 32)
        order = [before[place].id for place in np.argsort(-expected, kind="stable")]
        assert [hit.id for hit in after[:10]] == order
        assert [hit.score for hit in after[:10]] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)
        assert all(hit.scores[CROSS_ENCODER] == hit.score for hit in after[:10])
        assert all(set(hit.scores) == {BI_ENCODER} for hit in after[10:])
        by_id = {answer.id: answer for answer in answers}
        assert all((hit.id, hit.text, hit.question, hit.url, hit.title) == tuple(by_id[hit.id]) for hit in after)


def test_a_blend_ranks_by_both_orders(searcher, index, cross_encoder):
    blended = Searcher(index, str(cross_encoder), max_length=32, blend=True)
    plain, ranked, both = (
        each.search(QUESTIONS, k=60, rerank_k=count).hits
        for each, count in ((searcher, 0), (searcher, 10), (blended, 10))
    )
    for before, after, blend in zip(plain, ranked, both, strict=True):
        first, second = ([hit.id for hit in hits[:10]] for hits in (before, after))
        sums = {name: 1 / (61 + first.index(name)) + 1 / (61 + second.index(name)) for name in first}
        assert [hit.score for hit in blend[:10]] == pytest.approx(sorted(sums.values(), reverse=True))
        assert all(hit.score == hit.scores[BLEND] == pytest.approx(sums[hit.id]) for hit in blend[:10])
        assert all(CROSS_ENCODER in hit.scores for hit in blend[:10])
        assert [hit.id for hit in blend[10:]] == [hit.id for hit in before[10:]]


@pytest.mark.parametrize("stage", [BI_ENCODER, BM25, FUSION])
def test_a_batch_gives_what_its_questions_give_alone(searcher, stage):
    together = searcher.search(QUESTIONS, 5, 8, stage)
    for question, hits in zip(QUESTIONS, together.hits, strict=True):
        alone = searcher.search([question], 5, 8, stage).hits[0]
        assert [hit.id for hit in alone] == [hit.id for hit in hits]
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    stages = {BI_ENCODER: {"encode", "nearest"}, BM25: {"words"}, FUSION: {"encode", "nearest", "words"}}[stage]
    assert set(together.timings) == stages | {"rerank", "read", "total"}
    assert together.timings["total"] >= sum(together.timings[name] for name in stages)


def test_fusion_adds_up_reciprocal_ranks(searcher):
    rows, sums = fuse([(np.array([3, 1, 2]), np.zeros(3)), (np.array([2, 9]), np.zeros(2))], 3)
    assert rows.tolist() == [2, 3, 1]
    assert sums.tolist() == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62])
    hit = searcher.search(["number 41"], 1, 0, FUSION).hits[0][0]
    assert set(hit.scores) >= {FUSION}
    assert hit.score == hit.scores[FUSION]


@pytest.mark.parametrize("stage", [BI_ENCODER, BM25])
def test_a_fusion_takes_its_similarities_from_the_index(tmp_path, bi_encoder, cross_encoder, answers, index, stage):
    weights, words = {"BM25": 0.2, "bi-encoder": 0.3, "cross-encoder": 0.5}, count_words([a.text for a in answers])
    models = {"bi_encoder": str(bi_encoder), "cross_encoder": str(cross_encoder)}
    release, about = tmp_path / "release", {"data": "made", "figures": {}}
    write_fusion(release, **models, weights=weights, by_rank=False, words=words, about=about)
    build_index(tmp_path / "index", Embedder(str(release)), answers)
    for place, known in ((tmp_path / "index", {"bi-encoder"}), (index, set())):
        searcher = Searcher(place, str(release))
        assert set(searcher.cross_encoder.model.known) == known
        answered = searcher.search([*QUESTIONS, "nonesuch"], 10, 10, stage)
        assert ("encode" in answered.timings) == (stage == BI_ENCODER or bool(known))
        for question, hits in zip(QUESTIONS, answered.hits, strict=False):
            expected = score_answers(str(release), make_candidates([question], [[hit.text for hit in hits]]))
            assert [hit.score for hit in hits] == pytest.approx(expected, abs=0.02)  # the index's vectors are rounded
            assert (np.diff([hit.score for hit in hits]) <= 0).all()


@pytest.mark.parametrize(
    "question",
    ["\0\x1b[31mred", "<script>alert(1)</script>", "[SEP] [CLS]", "\ud800", "x" * 1_000_000, "的" * 9000, "?"],
)
def test_hostile_questions_are_answered(searcher, question):
    answered = searcher.search([question], 3, 5, FUSION)
    assert len(answered.hits[0]) == 3
    assert all(np.isfinite(hit.score) for hit in answered.hits[0])
    with pytest.raises(KinspanError, match="empty"):
        searcher.search(["fine", "\0\n "])


def test_nothing_found_is_no_error(searcher):
    assert searcher.search(["nonesuch"], 3, 5, BM25).hits == [[]]
    assert searcher.search([], 3).hits == []


def test_a_moved_or_misplaced_bi_encoder_is_named_by_its_flag(tmp_path, bi_encoder, answers):
    moved = shutil.copytree(bi_encoder, tmp_path / "moved")
    build_index(tmp_path / "index", Embedder(str(moved), 16), answers[:4])
    moved.rename(tmp_path / "elsewhere")
    with pytest.raises(KinspanError, match="--model"):
        Searcher(tmp_path / "index")
    found = Searcher(tmp_path / "index", model=str(bi_encoder))
    assert found.search(["a river"], 2).hits[0]
    assert found.embedder.max_length == 16
    with pytest.raises(KinspanError, match="--cross_encoder"):
        ReRanker(str(bi_encoder))
