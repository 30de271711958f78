"""Questions with only their right passages: how these are found in documents, and what is wrong for a question."""

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.passages import (
    Paragraphs,
    find_candidates,
    load_passage_questions,
    locate_answers,
    read_passage_questions,
)
from finetune.evaluation.metrics import MAP, SEARCH_METRICS, compute_question_metrics
from finetune.evaluation.named_metrics import measure_retrieval
from tests.conftest import write_jsonl as write

TEXTS = [
    "The pump starts when the lever is up. It stops when the lever is down.",
    "The lamp is red while the pump is hot.",
    "Close the valve. Then open the drain.",
    "The lever is oiled each year. Close the valve.",
    "The pump starts, when a lever is up! It stops when the lever is down",  # nearly the first
    "Call the service, at night too.",
]
PLACES = [*[("a.md", "Pump")] * 2, *[("b.md", "Valve")] * 2, *[("man/c.md", "Copy")] * 2]
PARAGRAPHS = Paragraphs(TEXTS, PLACES, ["Pumps", "", "To drain", "To drain", "Pumps", ""])
ASKED = [  # question, answer, document, and the rows of what is right
    ("When does it start?", "the PUMP  starts when the lever is up. It stops when the lever is down.", None, [0]),
    ("Which colour?", "The lamp is red", None, [1]),
    ("What is first?", "close the valve", "valve", [2, 3]),
    ("What to close?", "Close the valve.", None, [6]),  # two contain it: it joins
    ("How is it kept?", "The lever is oiled each year. Close the lid.", None, [3]),  # nearly
    ("Who helps?", "Call the service, at night too.", "a.md", [5, 8]),
    ("And what to do with it?", "Close the valve", "a.md", [7]),
    ("who helps?", "Nobody.", None, [5, 8]),
    ("What if it stays hot?", f"{TEXTS[1]}\n\n{TEXTS[2]}", None, [1, 2]),  # it contains two
    ("How is this emptied?", "To drain", None, [9]),
    ("How is it emptied?", "to  drain", "Valve", [2, 3]),  # a heading
    ("How is it called?", "Call the service", "c.md", [5]),
]


@pytest.fixture
def located(tmp_path):
    lines = [dict(zip(("question", "answer", "document"), fields, strict=False)) for fields in ASKED]
    questions, documents = read_passage_questions(write(tmp_path / "q.jsonl", lines), {})
    return questions, *locate_answers(questions, documents, PARAGRAPHS)


def test_right_passages_are_found_or_join(located):
    questions, paragraphs, right = located
    assert [*zip(questions.questions, right, strict=True)] == [(question, rows) for question, _, _, rows in ASKED]
    assert paragraphs.texts[:6] == TEXTS
    assert paragraphs.texts[6:] == ["Close the valve.", "Close the valve", "Nobody.", "To drain"]
    assert paragraphs.documents == [*PLACES, *[("", "")] * 4]


def test_tables_of_any_form_are_read(tmp_path):
    (tmp_path / "q.csv").write_text("id,ask,passage,document\n1,why?,a,x.md\n2,why?,b,\n1,why?,c,y.md\n")
    names = {"question": "ask", "answer": "passage", "question_id": "id"}
    data, documents = read_passage_questions(tmp_path / "q.csv", names)
    assert list(data.question_ids) == ["1", "2"]
    assert data.answers.to_pylist() == ["a", "c", "b"]
    assert [documents[name] for name in data.answer_ids.to_pylist()] == ["x.md", "y.md", ""]
    lines = [{"question": "a", "answer": "b"}, {"question": "c", "answer": "d", "document": "e"}]
    path = write(tmp_path / "q.jsonl", lines)
    assert read_passage_questions(path, {})[1] == {"2": "e"}
    with pytest.raises(KinspanError, match=r"--columns.*'place'"):
        read_passage_questions(path, {"document": "place"})


def test_labels_decide_what_is_right(tmp_path):
    lines = [{"question": "why?", "answer": answer, "rel": label} for answer, label in (("a", 1), ("b", 0), ("c", 1))]
    (tmp_path / "set").mkdir()
    spec = f"files={write(tmp_path / 'set/test.jsonl', lines)}"
    assert load_passage_questions(spec, "test", {"label": "rel"})[0].answers.to_pylist() == ["a", "c"]
    folder = f"files={tmp_path / 'set'}"
    for place, columns, flag in (
        *[(spec, None, "--columns.* label=rel"), (spec, {"label": "no"}, "'no'.*columns")],
        (folder, None, "--columns.* one file"),
    ):
        with pytest.raises(KinspanError, match=flag):  # else the wrong one would count as right
            load_passage_questions(place, "test", columns)
    write(tmp_path / "set/test.jsonl", [line | {"rel": 4 * line["rel"]} for line in lines])
    with pytest.raises(KinspanError, match=r"--columns.* label=rel"):  # grades
        load_passage_questions(spec, "test", None)
    for labels in ({}, {"label": 1}):
        rows = [{"question": line["question"], "answer": line["answer"], **labels} for line in lines]
        write(tmp_path / "set/test.jsonl", rows)
        assert load_passage_questions(spec, "test", None)[0].answers.to_pylist() == ["a", "b", "c"]
    (tmp_path / "set/log.jsonl").write_text("no split")
    assert load_passage_questions(folder, "test", None)[0].num_pairs == 3
    write(tmp_path / "set/test.jsonl", [lines[0], {**lines[1], "label": 0}])
    with pytest.raises(KinspanError, match=r"line 2.*'label'"):
        load_passage_questions(spec, "test", None)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"question": "q", "answer": " "}, "line 1"),
        ({"question": "", "answer": "a"}, "line 1"),
        ({"question": "q", "document": "a.md", "heading": "Start"}, "'answer'.*heading"),  # no reader keeps headings
    ],
)
def test_lines_without_texts_are_refused(tmp_path, line, named):
    with pytest.raises(KinspanError, match=rf"q\.jsonl.* {named}"):
        read_passage_questions(write(tmp_path / "q.jsonl", [line]), {})


def rank(*rows):
    return np.array(rows, dtype=np.int64), -np.arange(len(rows), dtype=np.float32)


def test_candidates_are_what_searches_find_and_the_right_ones(located):
    questions, paragraphs, right = located
    first = [rank(4, 3, 1, 2), rank(1), *[rank()] * 3, rank(9), *[rank()] * (len(right) - 6)]
    second = [rank(3, 5, 4), rank(5, 0), *[rank(5)] * (len(right) - 2)]
    data, found, clear = find_candidates(questions, right, paragraphs, [first, second], 3)
    of_first, of_second, of_third = list(data.question_slices())[:3]
    assert data.answer_ids[of_first].to_pylist() == ["0", "1", "3", "4", "5"]
    assert data.labels[of_first].tolist() == [1, 0, 0, 0, 0]
    assert found[of_first].tolist() == [False, True, True, True, True]
    assert clear[of_first].tolist() == [True, False, True, False, True]  # beside the first; nearly the first
    assert data.answer_ids[of_second].to_pylist() == ["0", "1", "5"]
    assert clear[of_second].tolist() == [False, True, True]
    assert data.answers[of_third].to_pylist() == [TEXTS[2], TEXTS[3], TEXTS[5]]
    assert data.question_ids == questions.question_ids
    assert clear[list(data.question_slices())[5]].all()  # beside it in no document


def test_figures_are_those_of_the_whole_search(located):
    """A re-ranker's figures count right passages that no search found as never ranked."""
    questions, paragraphs, right = located
    rng = np.random.default_rng(0)
    ranking = [rank(*rng.permutation(len(paragraphs.texts))) for _ in right]
    data, found, _ = find_candidates(questions, right, paragraphs, [ranking], 4)
    assert not found.all()
    place = [{row: -place for place, row in enumerate(rows.tolist())} for rows, _ in ranking]
    rows = zip(data.question_of, map(int, data.answer_ids.to_pylist()), strict=True)
    scores = np.array([place[question][row] for question, row in rows])
    ranked = [rows[:4].astype(str).tolist() for rows, _ in ranking]
    expected = measure_retrieval(ranked, [set(map(str, rows)) for rows in right], SEARCH_METRICS)
    figures = compute_question_metrics(data, np.where(found, scores, 9.0), SEARCH_METRICS, found)
    assert all(figures[metric].tolist() == expected[metric].tolist() for metric in SEARCH_METRICS)
    assert figures[MAP].mean() < compute_question_metrics(data, scores, (MAP,))[MAP].mean()
