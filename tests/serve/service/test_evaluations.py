"""Evaluations: written, read, and refused where they are damaged."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from data_pipeline.core.errors import KinspanError
from serve.answers import Answer
from serve.service.contract import SearchResponse
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
    first = {
        "id": "a1",
        "text": "text 1",
        "question": "question 1",
        "url": "",
        "title": "",
        "score": 0.5,
        "right": True,
    }
    assert shown["answers"]["model"][0] == first
    for path in ("/evaluations/none", "/evaluations/set/questions/none", "/evaluations/none/questions/q2"):
        assert client.get(path).status == 404


def test_what_is_named_is_all_that_is_kept(folder):
    kept = {json.loads(line)["id"] for line in (folder / ANSWERS).read_text().splitlines()}
    assert kept == {f"a{n}" for n in range(10)} | {"a15"}


def change(path: Path, number: int, **values) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / SETTINGS).unlink(), "there is no evaluation.json"),
        (lambda f: (f / SETTINGS).write_text("[]"), "evaluation.json: the line: "),
        (lambda f: (f / SETTINGS).write_text('{"format": 1}'), "models"),
        (lambda f: (f / SETTINGS).write_text('{"format": 9, "models": ["m"], "metrics": {}}'), "has format 9"),
        (lambda f: (f / QUESTIONS).unlink(), "cannot be read"),
        (lambda f: (f / QUESTIONS).write_text(""), "no question in it"),
        (lambda f: (f / QUESTIONS).write_text("{"), "line 1: the line: Invalid JSON"),
        (lambda f: (f / QUESTIONS).write_text("[" * 99_999), "line 1: the line: Invalid JSON"),
        (lambda f: (f / QUESTIONS).write_bytes(b"\xff"), "line 1: the line: Invalid JSON"),
        (lambda f: change(f / QUESTIONS, 1, right=3), "line 2: right: "),
        (lambda f: change(f / QUESTIONS, 1, id="q/1"), "line 2: the id 'q/1' stands for another before"),
        (lambda f: change(f / QUESTIONS, 1, found={}), "question q2 has other models"),
        (lambda f: change(f / ANSWERS, 0, id="other"), "answer a0 is missing"),
        (lambda f: change(f / ANSWERS, 1, text=None), "line 2: text: "),
    ],
)
def test_damage_is_named(folder, damage, reason):
    damage(folder)
    with pytest.raises(KinspanError, match=reason) as error:
        open_evaluation(folder, "set")
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_the_documented_examples_are_what_is_read_and_answered(tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs/search.md").read_text(encoding="utf-8")
    _, found, settings, question, answers = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert SearchResponse.model_validate(json.loads(found), extra="forbid").hits[0].id == "t1"
    (tmp_path / SETTINGS).write_text(settings)
    (tmp_path / QUESTIONS).write_text(json.dumps(json.loads(question)))  # which stands on two lines there
    (tmp_path / ANSWERS).write_text(answers)
    shown = open_evaluation(tmp_path, "set").describe_question("q1")
    assert [one["right"] for one in shown["answers"]["BM25"]] == [False, True]
