"""Questions with ids, in every form that they may have."""

import json
import re

import pytest

from data_pipeline.core.errors import KinspanError
from serve.questions import MAX_QUESTION, clean_question, keep_judged, read_questions

QUESTIONS = {"q1": "why so", "7": 'what is "it"'}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", 'q1\twhy so\nq1\twhy so\n7\twhat is "it"\n'),
        ("q.tsv", 'qid\tquery\nq1\twhy so\n7\twhat is "it"\n'),
        ("q.csv", 'query,query_id\nwhy so,q1\n"what is ""it""",7\n'),
        ("q.jsonl", '{"_id": "q1", "text": " why\\n so"}\n{"_id": 7, "text": "what is \\"it\\"", "metadata": {}}\n'),
    ],
)
def test_each_form_is_read_in_order(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert list(read_questions(str(tmp_path / name)).items()) == list(QUESTIONS.items())


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        *[("q.tsv", "q 1\twhy\n", "q.tsv line 1"), ("q.tsv", "q1\twhy\nq1\thow\n", "q.tsv line 2")],
        *[("q.tsv", "q1\t \n", "q.tsv line 1"), ("q.tsv", "q1\twhy\nq2 how\n", "q.tsv line 2")],
        *[("q.tsv", "", "q.tsv"), ("q.tsv", "id\tbody\n1\tx\n", "q.tsv")],
        ("q.jsonl", '{"question": "why"}\n', "q.jsonl"),
        ("q.jsonl", '{"id": "1", "question": "why"}\n{"id": "2"}\n', "q.jsonl line 2"),
        *[("q.jsonl", '{"id": 1.5, "question": "why"}\n', "q.jsonl line 1"), ("q.txt", "why\n", "q.txt")],
        *[("none.tsv", None, "none.tsv"), ("", None, "queries.jsonl")],
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, name, text, named):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(KinspanError, match=re.escape(named)) as error:
        read_questions(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_questions_are_cleaned_and_cut(tmp_path):
    assert clean_question(" a\tb\n\0c  d\u200b u\u0308") == "a b c d ü"
    (tmp_path / "q.tsv").write_text(f"q1\t{'word ' * MAX_QUESTION}\n")
    assert len(read_questions(str(tmp_path / "q.tsv"))["q1"]) <= MAX_QUESTION


def test_of_a_folder_the_judged_questions_are_kept(tmp_path):
    rows = [{"_id": name, "text": f"what of {name}"} for name in ("1", "2", "3")]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = read_questions(str(tmp_path))
    assert keep_judged(tmp_path, questions) == questions
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n3\ta\t1\n1\ta\t0\n")
    assert list(keep_judged(tmp_path, questions)) == ["3", "1"]
    del questions["1"]
    with pytest.raises(KinspanError, match=r"test\.tsv: question 1"):
        keep_judged(tmp_path, questions)
