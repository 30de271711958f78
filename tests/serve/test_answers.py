"""Answers of every form that --answers takes, and what may be wrong with them."""

import json
import re

import pytest

from data_pipeline.core.errors import KinspanError
from serve.answers import Answer, name_by_hash, read_answers, read_paragraphs
from tests.conftest import write_jsonl


def read(source, columns=None, all_answers=False):
    return read_answers([str(source)], [], columns, all_answers)


def read_documents(*sources):
    return read_answers([], list(map(str, sources)))


def test_a_table_may_name_and_leave_out_its_fields(tmp_path):
    rows = [
        {"id": 7, "text": " Restart\nit. ", "title": "It hangs", "url": "https://x.org"},
        {"answer": "Update it.", "title": "T"},
        {"id": None, "text": "", "question": "why?"},
        {"answer": "Update it.", "title": "T", "url": "https://y.org"},
        {"id": "1\ud83d", "text": "Cut \ud83d", "question": "\udc00"},
    ]
    path = tmp_path / "solved.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(path) == [
        Answer("7", "Restart\nit.", "", "https://x.org", "It hangs"),
        Answer(name_by_hash("Update it.", "T"), "Update it.", "", "", "T"),
        Answer("1?", "Cut ?", "?"),
    ]
    path = tmp_path / "solved.tsv"
    path.write_text('nr\tpassage\tasked\n1\tsay "so"\twhy?\n2\tb\t\n')
    assert read(path, {"id": "nr", "question": "asked"}) == [Answer("1", 'say "so"', "why?"), Answer("2", "b")]
    path = write_jsonl(tmp_path / "some.jsonl", [{"text": "a"}, {"text": "b", "why": "q"}])
    assert [answer.question for answer in read(path, {"question": "why"})] == ["", "q"]
    path = write_jsonl(tmp_path / "docid.jsonl", [{"docid": "7067032", "title": "Owls", "text": "Ｏwls hunt."}])
    assert read(path) == [Answer("7067032", "Owls hunt.", title="Owls")]
    (tmp_path / "collection.tsv").write_text('0\tThe "first" one.\n17\tAnother.\n')
    assert read(tmp_path / "collection.tsv") == [Answer("0", 'The "first" one.'), Answer("17", "Another.")]


REFUSED = [  # a file, its text, columns, what the message names
    ("a.jsonl", '{"body": "x"}\n', {}, "--columns"),
    ("a.jsonl", '{"id": "1", "text": "x"}\n{"id": "1", "text": "y"}\n', {}, "a.jsonl: the id '1'"),
    *[("a.jsonl", '{"text": ""}\n', {}, "a.jsonl"), ("a.jsonl", "", {}, "a.jsonl")],
    *[("a.jsonl", '{"text": ["x"]}\n', {}, "a.jsonl line 1"), ("a.jsonl", '{"text": "x"}\n{', {}, "a.jsonl line 2")],
    *[("a.txt", "x", {}, "a.txt"), ("d.jsonl", '{"paragraphs": ["x"]}\n', {}, "--documents")],
    ("a.jsonl", '{"text": "x"}\n', {"body": "x"}, "--columns"),
    ("a.jsonl", '{"question": "x", "answer": "y", "label": 0}\n', {}, "files="),
    ("a.tsv", "id\ttext\n1\tx\n", {"id": "number"}, "--columns"),
    *[("a.tsv", "0\tone\n1\ttwo\tthree\n", {}, "a.tsv line 2"), ("a.tsv", "number\tbody\n1\tone\n", {}, "a.tsv")],
]


@pytest.mark.parametrize(("name", "text", "columns", "named"), REFUSED)
def test_a_bad_table_is_refused_in_one_line(tmp_path, name, text, columns, named):
    (tmp_path / name).write_text(text)
    with pytest.raises(KinspanError, match=re.escape(named)) as error:
        read(tmp_path / name, columns)
    assert "\n" not in str(error.value)


def test_a_source_that_is_absent_or_no_table_is_refused(tmp_path):
    for read_source in (read, read_documents, lambda path: read(f"forum=questions:{path}")):
        with pytest.raises(KinspanError, match=r"absent\.jsonl"):
            read_source(tmp_path / "absent.jsonl")
    broken = write_jsonl(tmp_path / "asked.jsonl", [{"id": 1, "title": "Why?"}])
    with pytest.raises(KinspanError, match=re.escape(str(broken))):
        read(f"forum=questions:{broken}")
    for source in (f"forum={tmp_path}", f"files={tmp_path}", tmp_path):
        with pytest.raises(KinspanError, match="--columns"):
            read(source, {"text": "body"})
    with pytest.raises(KinspanError, match=r"corpus\.jsonl"):
        read(tmp_path)


def test_numbers_within_questions_are_no_ids_of_texts(tmp_path):
    rows = [("why?", "0", "since", 1), ("why?", "1", "so", 0), ("how?", "0", "so", 1), ("how?", "1", "since", 0)]
    names = ("question", "answer_id", "answer", "label")
    (tmp_path / "set").mkdir()
    write_jsonl(tmp_path / "set/train.jsonl", [dict(zip(names, row, strict=True)) for row in rows])
    answers = read(f"files={tmp_path / 'set'}")
    assert [(answer.text, answer.question) for answer in answers] == [("since", "why?"), ("so", "how?")]
    for split in ("train", "dev"):  # without ids
        pairs = [(f"{q} in {split}?", a) for q in ("why", "how") for a in ("since", "so")]
        rows = [{"question": q, "answer": a, "label": int(a == "so")} for q, a in pairs]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    assert sorted(answer.text for answer in read(f"files={tmp_path}")) == ["since", "so"]


def test_a_data_set_gives_its_candidates_and_the_questions_that_they_answer(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [("1", "why?", "a", "since", 0), ("2", "how?", "b", "so", 1), ("2", "how?", "a", "since", 1)]
    names = ("question_id", "question", "answer_id", "answer", "label")
    lines = [dict(zip(names, row, strict=True)) for row in rows]
    write_jsonl(folder / "train.jsonl", lines)
    write_jsonl(folder / "dev.jsonl", [lines[1] | {"answer": "otherwise"}])
    answers = read(f"files={folder}")
    of_b = [Answer(name_by_hash(text, ""), text, "how?") for text in ("so", "otherwise")]
    assert answers == [Answer("a", "since", "how?"), *of_b]


def questions(folder):
    text = "Since Monday it prints nothing at all, whatever I do."
    answers = ["Buy another.", "Switch it off and on again.", " "]
    rows = [
        {"id": "t1", "title": "The printer is offline", "text": text, "answers": answers, "accepted": 1},
        {"id": "t2", "title": "The screen is dark", "text": "It was bright before, and now it is dark.", "answers": []},
        {"id": "t3", "title": "The mouse is stuck", "text": "It moves left and never right.", "answers": ["Clean it."]},
    ]
    return f"questions:{write_jsonl(folder / 'tickets.jsonl', rows)}"


def test_a_forum_gives_its_accepted_answers_or_all(tmp_path):
    (accepted,) = read(f"forum={questions(tmp_path)}")
    assert (accepted.text, accepted.question) == ("Switch it off and on again.", "The printer is offline")
    answers = read(f"forum={questions(tmp_path)}", all_answers=True)
    assert accepted in answers
    found = {(answer.text, answer.question) for answer in answers if answer != accepted}
    assert found == {("Buy another.", "The printer is offline"), ("Clean it.", "The mouse is stuck")}
    assert len({answer.id for answer in answers}) == 3


def test_a_folder_in_the_form_of_beir(tmp_path):
    rows = [
        {"_id": "MED-10", "title": "Statins", "text": "They lower cholesterol.", "metadata": {"url": "x"}},
        {"_id": 4983, "title": "", "text": "No title."},
        {"_id": "31", "text": "No field."},
        {"_id": "32", "title": "Only a title", "text": ""},
        {"_id": "33", "title": "", "text": ""},
    ]
    write_jsonl(tmp_path / "corpus.jsonl", rows)
    answers = read(tmp_path)
    assert answers == [
        *[Answer("MED-10", "Statins They lower cholesterol."), Answer("4983", "No title.")],
        *[Answer("31", "No field."), Answer("32", "Only a title")],
    ]
    assert read(tmp_path / "corpus.jsonl") == answers


def test_documents_are_read_by_paragraphs_and_a_forum_by_its_answers(tmp_path, tiny_documents):
    path = tmp_path / "d.jsonl"
    document = {**tiny_documents[0], "url": "https://x.org"}
    copy = {**document, "id": "copy", "url": "https://x.org/copy"}  # the address of its first place counts
    write_jsonl(path, [document, *tiny_documents[1:], {"paragraphs": ["Short."]}, copy])
    answers = read_documents(path)
    assert Answer(f"{document['id']}#1", document["paragraphs"][0], "", "https://x.org", document["title"]) in answers
    assert "Short." not in {answer.text for answer in answers}
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"title": "It hangs", "text": "Why?", "answers": ["Restart it.", ""], "accepted": 0}))
    assert read_documents(f"questions:{asked}") == [Answer("asked.jsonl:1#1", "Restart it.", "It hangs")]


def test_paragraphs_are_found_again_by_the_ids_of_their_documents(tmp_path, tiny_documents):
    """Those of an id that several documents have are told apart; one that comes twice comes once."""
    first, second, third = (document["paragraphs"][0] for document in tiny_documents[:3])
    for name in ("docs/sub", "old/docs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "my notes.md").write_text(f"# Mine\n\n{first}\n\n{second}")
    (tmp_path / "docs/README.md").write_text(f"# A\n\n{first}")
    (tmp_path / "docs/sub/README.md").write_text(f"# A\n\n{second}")
    (tmp_path / "old/docs/README.md").write_text(third)
    lines = [{"id": "x", "paragraphs": [text]} for text in (first, second, third, second)]
    write_jsonl(tmp_path / "d.jsonl", lines)
    folders = [tmp_path / "docs", tmp_path / "old/docs"]
    answers = read_documents(*folders, tmp_path / "my notes.md", tmp_path / "d.jsonl")
    ids = {(answer.id, answer.text, answer.title) for answer in answers}
    names = [str(folder).strip("/") for folder in folders]  # two of one name
    assert {(f"{names[0]}/README.md#1", first, "A"), (f"{names[0]}/sub/README.md#1", second, "A")} < ids
    assert {("my_notes.md#1", first, "Mine"), ("my_notes.md#2", second, "Mine"), ("x#1", first, "")} < ids
    assert {(f"x#1-{name_by_hash(text, '')}", text, "") for text in (second, third)} < ids
    assert (f"{names[1]}/README.md#1", third, "") in ids  # a file's name is no title
    assert len(answers) == 8
    assert ("docs/README.md#1", first) in {(answer.id, answer.text) for answer in read_documents(tmp_path / "docs")}
    paragraphs = read_paragraphs([str(tmp_path / name) for name in ("my notes.md", "docs/sub", "d.jsonl")])
    assert dict(zip(paragraphs.texts, paragraphs.documents, strict=True)) == {
        **dict.fromkeys((first, second), ("my_notes.md", "my_notes.md", "my_notes", "Mine")),
        third: ("x", "x", "x", ""),
    }


def test_paragraphs_have_the_heading_above_them(tmp_path, tiny_documents):
    first, second, third, fourth = (document["paragraphs"][0] for document in tiny_documents[:4])
    (tmp_path / "a.md").write_text(f"{first}\n\n# *Mine*\n\n```\ncode\n```\n\n{second}\n\n## Yours\n\n| no |\n|--|\n")
    (tmp_path / "b.rst").write_text(f"Top\n===\n\nSub\n---\n\n.. topic:: Beware\n\n   Of it.\n\n{third}\n")
    soft_hyphen = fourth.replace(" ", " \u00ad", 1)
    (tmp_path / "c.md").write_text(f"# Ours\n\n{soft_hyphen}\n")
    paragraphs = read_paragraphs([str(tmp_path)])
    headings = dict(zip(paragraphs.texts, paragraphs.headings, strict=True))
    assert headings == {first: "", second: "Mine", third: "Sub", fourth: "Ours"}
