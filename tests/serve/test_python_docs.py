"""Python's documentation as answers."""

import re

import pytest

from finetune.evaluation.trec import is_trec_id
from serve.answers import PYTHON_DOCS, Answer, read_answers
from serve.demo import EVALUATION, INDEX, evaluate_ways, find_right, read_questions
from serve.python_docs import split_passages


@pytest.fixture(scope="module")
def passages():
    return read_answers(PYTHON_DOCS, {}, print)


def test_a_passage_is_what_python_says_of_a_name(passages):
    of = {answer.id: answer for answer in passages}
    insort = of["bisect.insort_right"]
    assert insort.text.startswith("bisect.insort_right(a, x, ")
    assert "Insert item x in list a, and keep it sorted" in insort.text
    assert insort.title == "bisect.insort_right"
    assert re.fullmatch(r"https://docs\.python\.org/3\.\d+/library/bisect\.html#bisect\.insort_right", insort.url)
    assert of["str.split"].url.endswith("/library/stdtypes.html#str.split")
    assert of["ValueError"].url.endswith("/library/exceptions.html#ValueError")
    assert of["json.dumps"].text.startswith("json.dumps(obj, *, ")
    assert any("The for statement" in answer.title for answer in passages)  # of the language reference


def test_passages_are_short_and_none_repeats(passages):
    assert len(passages) > 4000
    assert all(is_trec_id(answer.id) for answer in passages)
    assert len({answer.text for answer in passages}) > 0.999 * len(passages)
    assert sum(len(answer.text) > 1500 for answer in passages) < 0.01 * len(passages)
    assert not any(" at 0x" in answer.text.split("\n")[0] for answer in passages)


def test_passages_are_cut_at_blank_lines():
    text = "a" * 50 + "\n\n  - one\n  - two\n\n" + "b" * 90
    assert split_passages(text, 80) == ["a" * 50 + "\n\n  - one\n  - two", "b" * 90]
    assert split_passages("   indented\n     more\n\n" + "b" * 90, 80) == ["indented\n  more", "b" * 90]
    assert split_passages("a" * 75 + "\n\nend", 76) == ["a" * 75 + "\n\nend"]  # no passage of a word


def test_every_question_of_the_demo_has_an_answer(passages):
    questions = read_questions()
    assert len(questions) == 100
    assert not [text for text, titles in questions if not find_right(titles, passages)]


def test_the_ways_are_compared(tmp_path, embedder, cross_encoder):
    from serve.building import build_index
    from serve.service.evaluations import open_evaluation

    names = ("list.sort", "sorted", "csv.reader", "json.load#2")
    build_index(tmp_path / INDEX, embedder, [Answer(name, f"{name} sorts a list in place", name) for name in names])
    evaluate_ways(tmp_path / INDEX, read_questions()[:3], str(cross_encoder), tmp_path / EVALUATION)
    opened = open_evaluation(tmp_path / EVALUATION, EVALUATION)
    models = opened.summary["models"]
    assert models[:3] == ["BM25", "bi-encoder", "BM25 and bi-encoder"]
    assert [model.partition(" + ")[0] for model in models[3:]] == ["bi-encoder"]
    assert opened.questions["q1"].right == ["list.sort"]
    assert opened.questions["q1"].ranks["BM25"] is not None
    assert {len(found) for found in opened.questions["q1"].found.values()} == {4}
