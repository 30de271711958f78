"""Answers of every form that --answers takes, and what may be wrong with them."""

import json
import re
import shutil

import pytest

from data_pipeline.core.errors import KinspanError
from serve.answers import Answer, name_by_hash, read_answers


def read(source, columns=None, all_answers=False):
    return read_answers(str(source), columns or {}, all_answers)


def test_json_lines(tmp_path):
    path = tmp_path / "solved.jsonl"
    rows = [
        {"id": 7, "text": " Restart\nit. ", "title": "It hangs", "url": "https://x.org"},
        {"answer": "Update it."},
        {"id": None, "text": ""},
        {"answer": "Update it."},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = read(path)
    again = Answer(name_by_hash("Update it.", ""), "Update it.")
    assert answers == [Answer("7", "Restart\nit.", "", "https://x.org", "It hangs"), again]


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "1\\ud83d", "text": "Cut \\ud83d", "question": "\\udc00"}\n')
    assert read(tmp_path / "a.jsonl") == [Answer("1?", "Cut ?", "?")]


def test_tables_and_their_columns(tmp_path):
    path = tmp_path / "solved.tsv"
    path.write_text('nr\tpassage\tasked\n1\tsay "so"\twhy?\n2\tb\t\n')
    answers = read(path, {"id": "nr", "question": "asked"})
    assert answers == [Answer("1", 'say "so"', "why?"), Answer("2", "b")]
    with pytest.raises(KinspanError, match=r"--columns: .*solved\.tsv has no column num; there are nr, passage, asked"):
        read(path, {"id": "num"})
    (tmp_path / "some.jsonl").write_text('{"text": "a"}\n{"text": "b", "why": "q"}\n')
    assert [answer.question for answer in read(tmp_path / "some.jsonl", {"question": "why"})] == ["", "q"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.jsonl", '{"body": "x"}\n', "no column text or answer or passage; there are body: name the answers' one"),
        ("a.jsonl", '{"id": "1", "text": "x"}\n{"id": "1", "text": "y"}\n', "the id '1' stands there twice"),
        ("a.jsonl", '{"text": ""}\n', "no answer in it"),
        ("a.jsonl", "", "no answer in it"),
        ("a.jsonl", '{"text": ["x"]}\n', "a.jsonl line 1: 'text' is no text"),
        ("a.jsonl", '{"text": "x"}\n{', "a.jsonl line 2: not JSON"),
        ("a.txt", "x", "not a known format; give a file"),
        ("d.jsonl", '{"paragraphs": ["x"]}\n', r"or index documents with --answers documents=.*d\.jsonl"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(KinspanError, match=reason) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_name_that_is_no_file(tmp_path):
    with pytest.raises(KinspanError, match="there is no such file; give a file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(KinspanError, match="there is no field 'body'; known are text, id, question, url"):
        read(tmp_path / "a.jsonl", {"body": "x"})


def test_a_data_set_gives_its_candidates_and_the_questions_that_they_answer(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [("1", "why?", "a", "since", 0), ("2", "how?", "b", "so", 1), ("2", "how?", "a", "since", 1)]
    names = ("question_id", "question", "answer_id", "answer", "label")
    lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "dev.jsonl").write_text(lines[1].replace('"so"', '"otherwise"'))
    answers = read(f"files={folder}")
    of_b = [Answer(name_by_hash(text, ""), text, "how?") for text in ("so", "otherwise")]
    assert answers == [Answer("a", "since", "how?"), *of_b]


def test_where_ids_are_numbers_within_a_question_each_text_comes_once(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [("why?", "0", "since", 1), ("why?", "1", "so", 0), ("how?", "0", "so", 1), ("how?", "1", "since", 0)]
    names = ("question", "answer_id", "answer", "label")
    (folder / "train.jsonl").write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    answers = read(f"files={folder}")
    assert [(answer.text, answer.question) for answer in answers] == [("since", "why?"), ("so", "how?")]


def test_questions_that_share_a_pool_without_ids_give_each_text_once(tmp_path):
    rows = [{"question": q, "answer": a, "label": int(a == "so")} for q in ("why?", "how?") for a in ("since", "so")]
    lines = [json.dumps(row) + "\n" for row in rows]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(lines).replace("?", f" in {split}?"))
    answers = read(f"files={tmp_path}")
    assert sorted(answer.text for answer in answers) == ["since", "so"]


def test_a_single_file_of_labelled_questions_is_a_data_set(tmp_path):
    path = tmp_path / "labelled.jsonl"
    path.write_text('{"question": "why?", "answer": "since", "label": 1}\n')
    assert read(f"files={path}") == [Answer("q1-1", "since", "why?")]
    path.write_text('{"question": "why?", "answer_id": "a 1", "answer": "since", "label": 1}\n')
    assert read(f"files={path}") == [Answer("a_1", "since", "why?")]


def test_what_has_no_text_is_counted_with_its_lines(tmp_path):
    path = tmp_path / "solved.jsonl"
    path.write_text('{"text": "x", "label": 0}\n{"text": ""}\n{"Text": "y"}\n{"text": null}\n')
    answers = read(path)
    assert [answer.text for answer in answers] == ["x"]


def questions(folder):
    rows = [
        {
            "id": "t1",
            "title": "The printer is offline",
            "text": "Since Monday it prints nothing at all, whatever I do.",
            "answers": ["Buy another.", "Switch it off and on again.", " "],
            "accepted": 1,
        },
        {"id": "t2", "title": "The screen is dark", "text": "It was bright before, and now it is dark.", "answers": []},
        {"id": "t3", "title": "The mouse is stuck", "text": "It moves left and never right.", "answers": ["Clean it."]},
    ]
    path = folder / "tickets.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"questions:{path}"


NOT_INDEXED = [
    "2 questions have no accepted answer",
    "2 answers were not accepted, and are left out: to search them too, build another index with --all_answers",
]


def test_a_forum_gives_its_accepted_answers_and_counts_the_others(tmp_path):
    answers = read(f"forum={questions(tmp_path)}")
    (answer,) = answers
    assert (answer.text, answer.question) == ("Switch it off and on again.", "The printer is offline")


def test_all_answers_of_a_forum(tmp_path):
    (accepted,) = read(f"forum={questions(tmp_path)}")
    answers = read(f"forum={questions(tmp_path)}", all_answers=True)
    assert accepted in answers
    found = {(answer.text, answer.question) for answer in answers if answer != accepted}
    assert found == {("Buy another.", "The printer is offline"), ("Clean it.", "The mouse is stuck")}
    assert len({answer.id for answer in answers}) == 3


def test_so_does_its_corpus(tmp_path, helpers):
    from tests.synthetic import short_tokenizer

    options = {"validation_share": 0.0, "duplicates": "keep"}
    helpers.prepare([questions(tmp_path)], short_tokenizer(), tmp_path / "corpus", **options)
    (answer,) = read(tmp_path / "corpus")
    assert answer.text == "switch it off and on again."
    assert answer.question == "The printer is offline"
    every = read(tmp_path / "corpus", all_answers=True)
    assert {each.text for each in every} == {"buy another.", answer.text, "clean it."}
    shutil.rmtree(tmp_path / "corpus/tokenizer")
    with pytest.raises(KinspanError, match="tokenizer"):
        read(tmp_path / "corpus")


def test_a_folder_in_the_form_of_beir(tmp_path):
    rows = [
        {"_id": "MED-10", "title": "Statins", "text": "They lower cholesterol.", "metadata": {"url": "x"}},
        {"_id": 4983, "title": "", "text": "No title."},
        {"_id": "31", "text": "No field."},
        {"_id": "32", "title": "Only a title", "text": ""},
        {"_id": "33", "title": "", "text": ""},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = read(tmp_path)
    assert answers == [
        Answer("MED-10", "Statins They lower cholesterol."),
        Answer("4983", "No title."),
        Answer("31", "No field."),
        Answer("32", "Only a title"),
    ]
    assert read(tmp_path / "corpus.jsonl") == answers
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(
        KinspanError, match=r"this folder has no corpus.jsonl of BEIR's form, and no manifest.json of a"
    ):
        read(tmp_path)


def test_ids_and_texts_without_column_names(tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_text('0\tThe "first" one.\n17\tAnother.\n')
    answers = read(path)
    assert answers == [Answer("0", 'The "first" one.'), Answer("17", "Another.")]
    path.write_text("0\tone\n1\ttwo\tthree\n")
    with pytest.raises(KinspanError, match=r"collection.tsv line 2: 3 fields, not 2: id, text"):
        read(path)
    path.write_text("number\tbody\n1\tone\n")
    with pytest.raises(KinspanError, match="no column text"):
        read(path)


def test_documents_are_read_by_paragraphs_and_a_forum_by_its_answers(tmp_path, tiny_documents):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in [*tiny_documents, {"paragraphs": ["Short."]}]))
    answers = read(f"documents={path}")
    document = tiny_documents[0]
    assert Answer(f"{document['id']}#1", document["paragraphs"][0], title=document["title"]) in answers
    assert "Short." not in {answer.text for answer in answers}
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"title": "It hangs", "text": "Why?", "answers": ["Restart it.", ""], "accepted": 0}))
    assert read(f"documents=questions:{asked}") == [Answer("asked.jsonl:1#1", "Restart it.", "It hangs")]


def test_paragraphs_are_found_again_by_the_ids_of_their_documents(tmp_path, tiny_documents):
    """Those of an id that several documents have are told apart; one that comes twice comes once."""
    one, two, three = (document["paragraphs"][0] for document in tiny_documents[:3])
    (tmp_path / "sub").mkdir()
    (tmp_path / "my notes.md").write_text(f"# Mine\n\n{one}\n\n{two}")
    (tmp_path / "a.md").write_text(f"# A\n\n{one}")
    (tmp_path / "sub/a.md").write_text(f"# A\n\n{two}")
    lines = [{"id": "x", "paragraphs": [text]} for text in (one, two, three, two)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    answers = read(f"documents={tmp_path}")
    ids = {(answer.id, answer.text, answer.title) for answer in answers}
    assert {("my_notes.md#1", one, "Mine"), ("my_notes.md#2", two, "Mine")} < ids
    assert {("a.md#1", one, "A"), ("sub/a.md#1", two, "A"), ("x#1", one, "")} < ids
    assert {(f"x#1-{name_by_hash(text, '')}", text, "") for text in (two, three)} < ids
    assert len(answers) == 7


def test_a_short_document_and_a_small_table_beside_others_are_no_reason_to_refuse(tmp_path, tiny_documents):
    (tmp_path / "a.md").write_text("# A\n\n" + tiny_documents[0]["paragraphs"][0])
    (tmp_path / "b.md").write_text("# B\n\nSee a.md.")
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    (tmp_path / "c.jsonl").write_text("{}\n")
    assert read(f"documents={tmp_path}")
    for name in ("c.csv", "c.jsonl"):
        with pytest.raises(KinspanError, match=name):
            read(f"documents={tmp_path / name}")


def test_documents_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(KinspanError, match=r".*absent\.jsonl: no such file"):
        read(f"documents={tmp_path / 'absent.jsonl'}")


def test_a_broken_forum_is_refused_by_its_file(tmp_path):
    path = tmp_path / "asked.jsonl"
    with pytest.raises(KinspanError, match=re.escape(str(path))):
        read(f"forum=questions:{path}")
    path.write_text('{"id": 1, "title": "Why?"}\n')
    with pytest.raises(KinspanError, match=re.escape(str(path))):
        read(f"forum=questions:{path}")
    path.write_text('{"id": 1, "title": "Why?", "text": "So?"}\n' * 2)
    with pytest.raises(KinspanError):
        read(f"forum=questions:{path}")


def test_columns_of_what_is_no_table_are_refused(tmp_path):
    for source in (f"documents={tmp_path}", f"forum={tmp_path}", f"files={tmp_path}", tmp_path):
        with pytest.raises(KinspanError, match="--columns names the columns of a table"):
            read(source, {"text": "body"})


def test_a_title_is_no_question(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [
        {"text": "a", "title": "T"},
        {"text": "b", "question": "why?"},
        {"text": "c", "title": "T", "question": "q"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(a.question, a.title) for a in read(path)] == [("", "T"), ("why?", ""), ("q", "T")]
    assert read(path)[0].id == name_by_hash("a", "T")
