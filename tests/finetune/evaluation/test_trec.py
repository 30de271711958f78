import json
from dataclasses import replace

import numpy as np
import pytest
import pytrec_eval

from data_pipeline.core.errors import KinspanError
from finetune.evaluation import trec
from finetune.evaluation.metrics import compute_question_metrics, compute_run_metrics, rank_rows, rank_run
from tests.finetune.data.rows import make_answers


@pytest.fixture
def data():
    ids = ["a", "bé", "cd", "a", "中"]
    texts = [f"text\n{name}\ud7ff" for name in ids]
    data = make_answers(["What ?", "Who ?"], [3, 2], texts, [0, 1, 0, 1, 0], ids)
    return replace(data, question_ids=["#1", "#2"])


SCORES = np.array([1 / 3, 1 / 3 + 1e-16, -2.5e-30, 0.1 + 0.2, 0.3])


def test_written_files_read_back_and_rank_alike(data, tmp_path):
    trec.write_predictions(tmp_path / "new/out", data, SCORES, "my model")
    run, qrels = trec.read_run(tmp_path / "new/out/run.txt"), trec.read_qrels(tmp_path / "new/out/qrels.txt")
    ids = data.answer_ids.to_pylist()
    assert run == {
        q: dict(zip(ids[r], SCORES[r].tolist(), strict=True))
        for q, r in zip(data.question_ids, data.question_slices(), strict=True)
    }
    order = rank_rows(data, SCORES)
    assert [name for of_question in run.values() for name in of_question] == [ids[row] for row in order]
    ours = compute_question_metrics(data, SCORES)
    assert all(np.array_equal(ours[m], values) for m, values in compute_run_metrics(qrels, run).items())
    assert trec.list_unshared(qrels, run) == []
    assert {p.name for p in (tmp_path / "new/out").iterdir()} == {"run.txt", "qrels.txt", "predictions.jsonl"}


def test_other_tools_read_what_is_written(data, tmp_path):
    trec.write_predictions(tmp_path, data, SCORES, "my tag")
    with (tmp_path / "run.txt").open(encoding="utf-8") as file:
        assert pytrec_eval.parse_run(file) == trec.read_run(tmp_path / "run.txt")
    with (tmp_path / "qrels.txt").open(encoding="utf-8") as file:
        assert pytrec_eval.parse_qrel(file) == trec.read_qrels(tmp_path / "qrels.txt")


def test_predictions_are_best_first(data, tmp_path):
    trec.write_predictions(tmp_path, data, SCORES, "tag")
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["question_id"] for line in lines] == ["#1", "#2"]
    assert lines[0]["question"] == "What ?"
    assert lines[1]["candidates"] == [
        {"id": "中", "text": "text\n中\ud7ff", "score": 0.3, "label": 0},
        {"id": "a", "text": "text\na\ud7ff", "score": 0.1 + 0.2, "label": 1},
    ]  # as 32-bit numbers they tie


def test_bad_scores_and_ids_write_nothing(data, tmp_path):
    with pytest.raises(KinspanError, match="question #1, candidate bé"):
        trec.write_predictions(tmp_path, data, np.array([0, np.nan, 0, 0, 0]), "tag")
    (tmp_path / "file").write_text("")
    with pytest.raises(KinspanError, match="--output_dir"):
        trec.write_predictions(tmp_path / "file/under", data, SCORES, "tag")
    spaced = replace(data.take(np.array([1])), question_ids=["q 2"])
    with pytest.raises(KinspanError, match="'q 2'"):
        trec.write_predictions(tmp_path, spaced, SCORES[3:], "tag")
    assert not (tmp_path / "run.txt").exists()


@pytest.mark.parametrize(
    ("read", "first", "line"),
    [
        (trec.read_run, "q1 Q0 d1 1 0.5 tag", "q1 Q0 d2 1 0.5"),
        (trec.read_run, "q1 Q0 d1 1 0.5 tag", "q1 Q0 d2 1 high tag"),
        *[(trec.read_run, "q1 Q0 d1 1 0.5 tag", "q1 Q0 d1 2 0.4 tag"), (trec.read_qrels, "q1 0 d1 1", "q1 d2 1")],
        *[(trec.read_qrels, "q1 0 d1 1", "q1 0 d2 1.0"), (trec.read_qrels, "q1 0 d1 1", "q1 0 d1 0")],
        (trec.read_qrels, "q1 0 d1 -1", f"q1 0 d2 {2**63}"),
    ],
)
def test_bad_lines_are_named(read, first, line, tmp_path):
    path = tmp_path / "file.txt"
    path.write_text(f"\n{first}\n")
    assert list(read(path)) == ["q1"]
    path.write_text(f"\n{first}\n{line}\n")
    with pytest.raises(KinspanError, match=f"{path} line 3"):
        read(path)
    path.write_bytes(first.encode() + b"\n\xff\n")
    with pytest.raises(KinspanError, match=str(path)):
        read(path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_or_missing_file_is_named(content, tmp_path):
    (tmp_path / "x").write_bytes(content)
    for read in (trec.read_run, trec.read_qrels):
        for place in (tmp_path / "x", tmp_path / "absent", tmp_path):
            with pytest.raises(KinspanError, match=str(place)):
                read(place)


def test_coverage_counts_what_the_files_do_not_share():
    qrels = {"q1": {"a": 1, "b": 0}, "q2": {"a": 0}, "q3": {"a": -1, "b": 1}}
    run = {"q1": {"a": 1.0, "x": 0.5, "y": 0.1}, "q9": {"a": 1.0}, "q2": {"a": 1.0}}
    assert [note.rpartition(": ")[2] for note in trec.list_unshared(qrels, run)] == ["1", "1", "2"]
    with pytest.raises(KinspanError, match="q9"):
        trec.list_unshared(qrels, {"q9": {"a": 1.0}})


def test_a_run_is_written_as_it_is_ranked(tmp_path):
    path = tmp_path / "run.txt"
    rankings = {"q2": {"a": 0.25, "b": 1 / 3, "c": 1 / 3}, "q1": {}, "q3": {"a": -1e-9}}
    trec.write_run(path, iter(rankings.items()), "my tag")
    assert trec.read_run(path) == {question: scores for question, scores in rankings.items() if scores}
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [(line[2], line[3], line[5]) for line in lines] == [  # equal scores by falling id
        *[("c", "1", "my_tag"), ("b", "2", "my_tag"), ("a", "3", "my_tag"), ("a", "1", "my_tag")]
    ]


@pytest.mark.parametrize("scores", [{"a": 12.5, "b": -11.3}, {"a": 1.0, "b": 1.0}, {"a": 0.3, "c": 0.3, "b": 0.3}])
def test_candidates_rank_in_their_order_by_their_scores(scores):
    rest = [f"r{number}" for number in range(1000)]
    both = trec.rank_scores(scores.items(), rest)
    assert rank_run({"q": both})["q"] == [*scores, *rest]  # as 32-bit numbers too
    assert {name: both[name] for name in scores} == pytest.approx(scores, rel=1e-6)
    assert both["a"] == scores["a"]
    assert trec.rank_scores([], ["x", "y"]) == {"x": -1.0, "y": -2.0}
