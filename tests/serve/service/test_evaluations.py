"""Evaluations: written, read, and refused where they are damaged."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from data_pipeline.core.errors import KinspanError
from serve.answers import Answer
from serve.service.api import SearchResponse
from serve.service.evaluations import ANSWERS, QUESTIONS, SETTINGS, EvaluatedQuery, open_evaluation, write_evaluation

ALL = [Answer(f"a{n}", f"text {n}", f"question {n}") for n in range(30)]


@pytest.fixture
def folder(tmp_path):
    twenty = [(f"a{n}", None) for n in range(20)]
    asked = [
        EvaluatedQuery("q/1", "first?", ["a1", "gone"], {"BM25": twenty, "model": [("a1", 0.5), ("a2", 0.25)]}),
        EvaluatedQuery("q2", "second?", ["a15"], {"BM25": twenty, "model": []}),
    ]
    write_evaluation(tmp_path / "set", asked, ALL)
    return tmp_path / "set"


def test_what_was_written_is_served(folder, start):
    client = start(evaluation=[str(folder)]).client
    metrics = {
        "BM25": {"MRR": pytest.approx((1 / 2 + 1 / 16) / 2, abs=1e-6), "R@1": 0, "R@5": 0.25, "R@10": 0.25},
        "model": {"MRR": 0.5, "R@1": 0.25, "R@5": 0.25, "R@10": 0.25},
    }
    models = ["BM25", "model"]
    assert client.get("/evaluations").json == {
        "evaluations": [{"name": "set", "models": models, "questions": 2, "metrics": metrics}]
    }
    assert client.get("/evaluations/set").json == {
        "name": "set",
        "models": models,
        "metrics": metrics,
        "questions": [
            {"id": "q/1", "text": "first?", "right": ["a1", "gone"], "ranks": {"BM25": 2, "model": 1}},
            {"id": "q2", "text": "second?", "right": ["a15"], "ranks": {"BM25": 16, "model": None}},
        ],
    }
    shown = client.get("/evaluations/set/questions/q/1").json
    assert client.get(f"/evaluations/set/questions/{quote('q/1', safe='')}").json == shown
    assert [answer["id"] for answer in shown["right"]] == ["a1"]
    assert [answer["right"] for answer in shown["answers"]["BM25"]] == [False, True] + [False] * 8
    assert shown["answers"]["model"][0] == {**ALL[1]._asdict(), "score": 0.5, "right": True}
    for path in ("/evaluations/none", "/evaluations/set/questions/none", "/evaluations/none/questions/q2"):
        assert client.get(path).status == 404
    kept = {json.loads(line)["id"] for line in (folder / ANSWERS).read_text().splitlines()}
    assert kept == {f"a{n}" for n in range(10)} | {"a15"}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *[(SETTINGS, None), (SETTINGS, "[]"), (SETTINGS, '{"format": 1}')],
        *[(SETTINGS, '{"format": 9, "models": ["m"], "metrics": {}}'), (QUESTIONS, None), (QUESTIONS, "")],
        *[(QUESTIONS, "[" * 99_999), (QUESTIONS, b"\xff"), (QUESTIONS, {"right": 3}), (QUESTIONS, {"hits": {}})],
        *[(ANSWERS, {"id": "another"}), (ANSWERS, {"text": None}), (ANSWERS, {"id": "a1"}), (QUESTIONS, {"id": "q2"})],
        (SETTINGS, '{"models": ["BM25", "model"], "metrics": {"BM25": {"MRR": NaN}}}'),
    ],
)
def test_damage_is_named_by_its_file(folder, file, content):
    path = folder / file
    lines = path.read_text().splitlines()
    if isinstance(content, dict):
        content = "\n".join([json.dumps(json.loads(lines[0]) | content), *lines[1:]])
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(KinspanError, match=re.escape(file)) as error:
        open_evaluation(folder, "set")
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_the_documented_examples_are_what_is_read_and_answered(tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs/search.md").read_text(encoding="utf-8")
    _, response, settings, question, answers = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert SearchResponse.model_validate(json.loads(response), extra="forbid").hits[0].id == "t1"
    (tmp_path / SETTINGS).write_text(settings)
    (tmp_path / QUESTIONS).write_text(json.dumps(json.loads(question)))  # which stands on two lines there
    (tmp_path / ANSWERS).write_text(answers)
    shown = open_evaluation(tmp_path, "set").show_question("q1")
    assert [hit["right"] for hit in shown["answers"]["BM25"]] == [False, True]
