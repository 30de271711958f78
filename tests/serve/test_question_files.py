"""Questions with ids, in every form that they may have, and what is refused."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from serve.question_files import keep_judged, read_questions
from serve.questions import MAX_QUESTION

QUESTIONS = {"q1": "why so", "7": 'what is "it"'}


def read(path):
    return read_questions(str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", 'q1\twhy so\n7\twhat is "it"\n'),
        ("q.tsv", 'qid\tquery\nq1\twhy\tso\n7\twhat is "it"\n'.replace("why\tso", "why so")),
        ("q.csv", 'query,id\nwhy so,q1\n"what is ""it""",7\n'),
        ("q.jsonl", '{"_id": "q1", "text": " why\\n so"}\n{"_id": 7, "text": "what is \\"it\\"", "metadata": {}}\n'),
        (
            "q.jsonl",
            '{"question_id": "q1", "question": "why so"}\n{"question_id": 7, "question": "what is \\"it\\""}\n',
        ),
        ("q.tsv", 'q1\twhy so\nq1\twhy so\n7\twhat is "it"\n'),
    ],
)
def test_forms(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    questions = read(tmp_path / name)
    assert questions == QUESTIONS
    assert list(questions) == list(QUESTIONS)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("q.tsv", "q 1\twhy\n", r"q.tsv line 1: the id 'q 1' is empty or has white space"),
        ("q.tsv", "q1\twhy\n\thow\n", r"q.tsv line 2: the id '' is empty"),
        ("q.tsv", "q1\twhy\nq2\t \n", r"q.tsv line 2: the question is empty"),
        ("q.tsv", "q1\twhy\nq1\thow\n", r"q.tsv line 2: the id 'q1' stands for another question"),
        ("q.tsv", "q1\twhy\nq2 how\n", r"q.tsv line 2: 1 fields, not 2: "),
        ("q.tsv", "", r"q.tsv: no question in it"),
        ("q.tsv", "id\tquestion\n", r"q.tsv: no question in it"),
        ("q.tsv", "id\tbody\n1\tx\n", r"q.tsv: no column question or query or text; there are id, body"),
        ("q.jsonl", '{"question": "why"}\n', r"q.jsonl: no column id or _id or"),
        ("q.jsonl", '{"id": "1", "question": "why"}\n{"id": "2"}\n', r"q.jsonl line 2: 'question' is no text"),
        ("q.jsonl", '{"id": 1.5, "question": "why"}\n', r"q.jsonl line 1: 'id' is no text"),
        ("q.txt", "why\n", r"q.txt: not a known format"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(KinspanError, match=reason) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_places_that_hold_no_questions(tmp_path):
    with pytest.raises(KinspanError, match="there is no such file"):
        read(tmp_path / "none.tsv")
    with pytest.raises(KinspanError, match=r"no queries.jsonl in this folder"):
        read(tmp_path)


def test_long_questions_are_said_to_be_cut(tmp_path):
    (tmp_path / "q.tsv").write_text(f"q1\t{'word ' * MAX_QUESTION}\n")
    questions = read(tmp_path / "q.tsv")
    assert len(questions["q1"]) <= MAX_QUESTION


def test_of_a_folder_those_that_are_judged(tmp_path):
    rows = [{"_id": name, "text": f"what of {name}"} for name in ("1", "2", "3")]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = read(tmp_path)
    assert list(questions) == ["1", "2", "3"]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n3\ta\t1\n1\ta\t0\n")
    del questions["1"]
    with pytest.raises(KinspanError, match=r"test.tsv: question 1 is not in queries.jsonl \(1 such\)"):
        keep_judged(tmp_path, questions)
