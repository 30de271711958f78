"""Runs of a search, which TREC tools measure, and runs that are re-ranked."""

import re
from functools import partial

import ir_measures
import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import compute_run_metrics, rank_run
from finetune.evaluation.trec import read_run, write_run
from finetune.ranking.config import RankConfig
from finetune.ranking.model import score_answers
from serve.building import build_index
from serve.questions import FUSION
from serve.search import Searcher, list_scores, make_candidates, rerank_run, search_all
from tests.conftest import write_jsonl

QUESTIONS = {f"q{number}": f"what of number {number}" for number in range(0, 60, 3)}


@pytest.fixture
def searched(index, tmp_path):
    """The run of a plain search for 20 answers to each question."""
    hits = search_all(Searcher(index).search, QUESTIONS, 20, False)
    write_run(tmp_path / "run.txt", ((name, list_scores(hits)) for name, hits in hits), "tag")
    return tmp_path / "run.txt"


@pytest.fixture
def rerank(searched, cross_encoder, tmp_path):
    """``rerank(collection, ...)``: the run as it is re-ranked."""

    def call(collection, run=searched, queries=None, depth=5):
        asked = tmp_path / "queries.tsv"
        asked.write_text("".join(f"{name}\t{text}\n" for name, text in (queries or QUESTIONS).items()))
        texts = {"run": str(run), "queries": str(asked), "collection": str(collection)}
        rerank_run(RankConfig(str(cross_encoder), str(tmp_path / "out"), **texts, depth=depth, max_length=32))
        return read_run(tmp_path / "out/run.txt")

    return call


def write_collection(path, answers):
    return write_jsonl(path, ({"_id": answer.id, "text": answer.text} for answer in answers))


def test_a_run_holds_what_the_search_finds_and_measures_as_it(tmp_path, index, cross_encoder):
    plain, reranked = Searcher(index).search, Searcher(index, str(cross_encoder), max_length=32).search
    fused = partial(plain, first_stage=FUSION)  # many of whose hits tie
    for search in (plain, fused, partial(reranked, rerank_k=5)):  # what is re-ranked stays above the rest
        served = list(search_all(search, QUESTIONS, 20, False))
        write_run(tmp_path / "run.txt", ((name, list_scores(hits)) for name, hits in served), "tag")
        qrels = {name: {hits[n % 7].id: 1} for n, (name, hits) in enumerate(served)}
        with (tmp_path / "run.txt").open() as file:
            theirs = ir_measures.calc_aggregate([ir_measures.RR], qrels, ir_measures.read_trec_run(file))
        expected, run = np.mean([1 / (1 + n % 7) for n in range(len(served))]), read_run(tmp_path / "run.txt")
        assert theirs[ir_measures.RR] == pytest.approx(expected)
        assert compute_run_metrics(qrels, run, ["mrr"])["mrr"].mean() == pytest.approx(expected)
        assert rank_run(run) == {name: [hit.id for hit in hits] for name, hits in served}
        assert all(run[name][hit.id] == pytest.approx(hit.score) for name, hits in served for hit in hits[:5])


def test_an_answer_with_the_id_of_its_question_is_left_out(index):
    asked = {"a3": "number 3", "q": "number 3", "none": "nonesuch"}
    same, another, none = (hits for _, hits in search_all(Searcher(index).search, asked, 60, True))
    assert "a3" not in {hit.id for hit in same}
    assert [len(hits) for hits in (same, another, none)] == [59, 60, 60]


def test_the_first_are_ranked_again_and_the_rest_follows(rerank, searched, index, answers, cross_encoder):
    before, after = rank_run(read_run(searched)), rerank(index)
    text = {answer.id: answer.text for answer in answers}
    assert after.keys() == before.keys()
    for name, ids in before.items():
        scores = score_answers(str(cross_encoder), make_candidates([QUESTIONS[name]], [[text[i] for i in ids[:5]]]), 32)
        assert [after[name][i] for i in ids[:5]] == pytest.approx(scores.tolist(), abs=1e-5)
        ranked = rank_run({name: after[name]})[name]
        assert ranked[:5] == [ids[place] for place in np.argsort(-scores, kind="stable")]
        assert ranked[5:] == ids[5:]


def test_every_collection_gives_the_same(rerank, index, answers, tmp_path):
    expected = rerank(index)
    (tmp_path / "beir").mkdir()
    assert rerank(write_collection(tmp_path / "beir/corpus.jsonl", answers).parent) == expected
    (tmp_path / "c.tsv").write_text("".join(f"{answer.id}\t{answer.text}\n" for answer in answers))
    assert rerank(tmp_path / "c.tsv") == expected


def test_bad_runs_and_missing_texts_are_named_by_line(rerank, searched, index, tmp_path, answers, embedder):
    lines = [line.split() for line in searched.read_text().splitlines()]
    lost = lines[17][2]
    line = f"run.txt: candidate {lost} "
    some = write_collection(tmp_path / "some.jsonl", [answer for answer in answers if answer.id != lost])
    twice = write_collection(tmp_path / "twice.jsonl", [*answers, answers[3]._replace(text="another")])
    build_index(tmp_path / "index", embedder, [answer for answer in answers if answer.id != lost])
    few = {name: text for name, text in QUESTIONS.items() if name not in ("q3", "q9")}
    (tmp_path / "bad.txt").write_text("q0 Q0 a0 1 high tag\n")
    for collection, named, options in (
        *[(some, line, {"depth": 20}), (tmp_path / "index", line, {"depth": 20})],
        *[(twice, "twice.jsonl", {"depth": 20}), (some, "run.txt: question q3", {"queries": few})],
        (index, "bad.txt line 1", {"run": tmp_path / "bad.txt"}),
        (index, "--output_dir", {"run": tmp_path / "out/run.txt"}),
    ):
        with pytest.raises(KinspanError, match=re.escape(named)):
            rerank(collection, **options)
        assert not (tmp_path / "out").exists()
