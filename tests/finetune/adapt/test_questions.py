"""Labelled questions as users have them: in one file, without a dev set, or far too many."""

import json

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt import questions
from finetune.adapt.questions import expect_questions, load_questions, name_questions, thin
from finetune.data.registry import load_split


def write_file(path, count, candidates=3, wrong=True):
    rows = [
        {"question": f"what is {q}?", "answer": f"answer {q} {k}", "label": int(k == q % candidates or not wrong)}
        for q in range(count)
        for k in range(candidates)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_file_is_split_in_three_the_same_way_every_time(tmp_path):
    found = load_questions(str(write_file(tmp_path / "q.jsonl", 100)), None, tmp_path / "out")
    sets = [set(split.questions) for split in (found.train, found.dev, found.test)]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 100
    assert all(len(own) > 10 for own in sets)
    assert [note for note in found.notes if "set apart" in note]
    assert [split.split for split in (found.train, found.dev, found.test)] == ["train", "dev", "test"]
    again = load_questions(str(write_file(tmp_path / "q.jsonl", 120)), None, tmp_path / "out2")
    assert sets[2] <= set(again.test.questions)  # more questions leave those in the test set where they are


def test_few_dev_or_test_questions_are_said(tmp_path):
    said = [
        "may be chance" in load_questions(str(write_file(tmp_path / "q.jsonl", count)), None, tmp_path).describe()[-1]
        for count in (100, 600)
    ]
    assert said == [True, False]


def test_a_file_that_is_no_split_is_said_to_be_left(tmp_path):
    write_file(tmp_path / "train.jsonl", 100)
    write_file(tmp_path / "val.jsonl", 20)
    assert any(note.endswith(": val.jsonl") for note in load_questions(str(tmp_path), None, tmp_path / "out").notes)


def test_what_is_written_is_what_is_used_and_test_is_kept_apart(tmp_path, sets):
    found = load_questions(f"files={sets}", None, tmp_path)
    assert not (tmp_path / "test").exists()  # not before it is known that they may be used
    found.write(tmp_path)
    for split in (found.train, found.dev):
        read, _ = load_split(found.spec, split.split)
        assert (read.questions, read.answers.to_pylist()) == (split.questions, split.answers.to_pylist())
        np.testing.assert_array_equal(read.labels, split.labels)
    with pytest.raises(KinspanError, match="no split test"):
        load_split(found.spec, "test")
    assert load_split(f"files={tmp_path / 'test' / 'test.jsonl'}", "test")[0].num_pairs == found.test.num_pairs


def test_many_are_drawn_and_keep_their_right_candidates(tmp_path, monkeypatch):
    monkeypatch.setitem(questions.MOST_QUESTIONS, "test", 10)
    monkeypatch.setitem(questions.MOST_PAIRS, "test", 40)
    monkeypatch.setitem(questions.MOST_QUESTIONS, "dev", 10)
    found = load_questions(str(write_file(tmp_path / "q.jsonl", 200, candidates=9)), None, tmp_path / "out")
    assert found.test.num_questions == found.dev.num_questions == 10
    assert found.test.num_pairs == 40
    assert found.test.positives.tolist() == [1] * 10
    assert np.diff(found.dev.starts).tolist() == [9] * 10
    assert any(note.startswith("test: 10 of ") for note in found.notes)
    again = load_questions(str(tmp_path / "q.jsonl"), None, tmp_path / "out")
    assert again.test.answers.equals(found.test.answers)


@pytest.mark.parametrize(
    ("count", "wrong", "message"),
    [
        (6, True, "test questions with right and wrong candidates are too few"),
        (60, False, "0 test questions with right and wrong candidates"),
    ],
)
def test_too_few_are_refused(tmp_path, count, wrong, message):
    with pytest.raises(KinspanError, match=message):
        load_questions(str(write_file(tmp_path / "q.jsonl", count, wrong=wrong)), None, tmp_path / "out")


def test_dev_questions_that_are_trained_on_are_said_to_be(tmp_path):
    for split in ("dev", "test"):
        path = write_file(tmp_path / f"{split}.jsonl", 60)
        path.write_text(path.read_text().replace("what is", f"what is in {split}"))
    found = load_questions(str(tmp_path), None, tmp_path / "out")
    assert found.train.num_questions + found.dev.num_questions == found.test.num_questions == 60
    assert any("no train split: the dev questions take its place" in note for note in found.notes)
    path.with_name("dev.jsonl").write_text("".join(path.read_text().replace("test", "dev").splitlines(True)[:18]))
    with pytest.raises(
        KinspanError, match=r"dev questions .* are too few.*; there is no train split: the dev questions"
    ):
        load_questions(str(tmp_path), None, tmp_path / "out")


def test_nothing_there(tmp_path):
    with pytest.raises(KinspanError, match=r"no train, dev or test split in it; give .*train\.jsonl"):
        load_questions(str(tmp_path), None, tmp_path / "out")
    with pytest.raises(KinspanError, match=r"no train, dev or test split in it; .*WikiQA-test\.tsv$"):
        load_questions(f"wikiqa={tmp_path}", None, tmp_path / "out")
    with pytest.raises(KinspanError, match=r"there is no such file or folder; give .*\"label\": 1"):
        expect_questions(str(tmp_path / "absent"))


def test_a_thinned_set_keeps_its_questions_and_their_right_candidates(tmp_path):
    dev = load_questions(str(write_file(tmp_path / "q.jsonl", 100, candidates=9)), None, tmp_path / "out").dev
    thinned = thin(dev, 4 * dev.num_questions)
    assert thinned.questions == dev.questions
    assert thinned.positives.tolist() == dev.positives.tolist()
    assert thinned.num_pairs == 4 * dev.num_questions
    assert thin(dev, dev.num_pairs) is dev


def test_a_thinned_question_with_many_right_candidates_keeps_a_wrong_one(tmp_path):
    rows = [
        {"question": f"what {q}?", "answer": f"answer {k}", "label": int(k < 8)} for q in range(30) for k in range(10)
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_split(f"files={tmp_path}", "test")[0]
    assert np.diff(thin(data, 4 * 30).starts).tolist() == [9] * 30


def test_a_card_names_the_questions_and_no_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("wikiqa=data/wikiqa", "data/labelled/", "files=data/labelled", "questions.jsonl")
    assert [name_questions(one) for one in given] == ["wikiqa", "labelled", "labelled", "questions.jsonl"]
    assert name_questions(".") == tmp_path.name
    assert name_questions("files=data/k=3/labelled") == "labelled"


def test_questions_that_cannot_be_used_are_counted(tmp_path):
    path = write_file(tmp_path / "q.jsonl", 60)
    lacking = [{"question": f"unanswered {n}?", "answer": "no", "label": 0} for n in range(90)]
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in lacking))
    found = load_questions(str(path), None, tmp_path / "out")
    counts = [int(note.split(": ")[1].split(" of ")[0]) for note in found.notes if note.endswith("are left out")]
    assert sum(counts) == 90
    assert len(counts) == 3


def test_test_questions_that_are_trained_on_are_refused_and_a_few_are_said(tmp_path):
    for split in ("train", "dev", "test"):
        path = write_file(tmp_path / f"{split}.jsonl", 20)
        path.write_text(path.read_text().replace("what is", f"what is in {split}"))
    train, test = (tmp_path / f"{split}.jsonl" for split in ("train", "test"))
    assert not any("share" in line for line in load_questions(str(tmp_path), None, tmp_path).describe())
    trained = train.read_text().splitlines(keepends=True)
    test.write_text(test.read_text() + "".join(trained[:6]))
    said = load_questions(str(tmp_path), None, tmp_path).describe()
    assert any("share 2 of 20 and 22 questions" in line for line in said)
    test.write_text("".join(trained))
    with pytest.raises(KinspanError, match="one is a part of the other, so no verdict would mean anything"):
        load_questions(str(tmp_path), None, tmp_path)


def test_a_broken_split_is_refused_and_not_passed_over(tmp_path):
    for split in ("train", "dev", "test"):
        write_file(tmp_path / f"{split}.jsonl", 20)
    (tmp_path / "train.jsonl").write_text('{"query": "a", "answer": "b", "label": 1}\n')
    with pytest.raises(KinspanError, match=r"no column 'question'; there are query.*--columns question=query"):
        load_questions(str(tmp_path), None, tmp_path / "out")
