"""Labelled questions as users have them: in one file, with a leak, reversed, or far too many."""

import json

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt.questions import load_questions, thin
from finetune.data.registry import load_split
from tests.conftest import write_jsonl


def write_file(path, count, candidates=3, turned=False, asks="what is"):
    rows = [
        {"question": f"{asks} {q}?", "answer": f"answer {q} {k}", "label": int((k == q % candidates) != turned)}
        for q in range(count)
        for k in range(candidates)
    ]
    return write_jsonl(path, rows)


def test_one_file_is_used_whole_and_judges_whole(tmp_path):
    loaded = load_questions(str(write_file(tmp_path / "q.jsonl", 50)), None, tmp_path / "out")
    assert loaded.test is None
    assert loaded.train.num_questions == loaded.judging.num_questions == 50
    assert loaded.num_folds == 5
    assert np.bincount(loaded.assign_folds(5)).tolist() == [10] * 5


def test_train_and_dev_are_pooled_and_test_is_kept_apart(tmp_path, write_sets):
    loaded = load_questions(f"files={write_sets(train=12, dev=11, test=13)}", None, tmp_path)
    assert (loaded.train.num_questions, loaded.test.num_questions) == (23, 13)
    assert not (tmp_path / "test").exists()  # not before it is known that they may be used
    loaded.write(tmp_path)
    read = load_split(loaded.spec, "train")
    assert (read.questions, read.answers.to_pylist()) == (loaded.train.questions, loaded.train.answers.to_pylist())
    np.testing.assert_array_equal(read.labels, loaded.train.labels)
    with pytest.raises(KinspanError, match="test"):
        load_split(loaded.spec, "test")
    assert load_split(f"files={tmp_path / 'test' / 'test.jsonl'}", "test").num_pairs == loaded.test.num_pairs


def test_each_fold_has_questions_that_compare(tmp_path):
    rows = [{"question": f"{'is' * q} it {q}", "answer": f"right {q % 4}", "label": 1} for q in range(160)]
    path = write_file(tmp_path / "q.jsonl", 30, candidates=9)
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_questions(str(path), None, tmp_path / "out")
    assert np.bincount(loaded.assign_folds(5)[loaded.compared]).tolist() == [6] * 5


def test_many_questions_are_trained_on_and_some_of_them_compare(tmp_path):
    loaded = load_questions(str(write_file(tmp_path / "q.jsonl", 2100, candidates=5)), None, tmp_path / "out")
    assert loaded.train.num_questions == 2000
    assert loaded.judging.num_questions == 300
    assert loaded.num_folds == 3
    assert loaded.notes
    many = load_questions(str(write_file(tmp_path / "many.jsonl", 60, candidates=150)), None, tmp_path / "out")
    assert many.judging.num_questions == 50


@pytest.mark.parametrize(("count", "candidates", "right", "kept"), [(100, 9, 1, (1, 4)), (30, 20, 8, (4, 6))])
def test_thinning_keeps_the_share_of_right_candidates(tmp_path, count, candidates, right, kept):
    rows = [
        {"question": f"what {q}?", "answer": f"answer {k}", "label": int(k < right)}
        for q in range(count)
        for k in range(candidates)
    ]
    write_jsonl(tmp_path / "test.jsonl", rows)
    data = load_split(f"files={tmp_path}", "test")
    notes = []
    thinned = thin(data, (count, count * sum(kept)), notes)
    assert thinned.questions == data.questions
    assert set(thinned.positives) == {kept[0]}
    assert set(np.diff(thinned.starts) - thinned.positives) == {kept[1]}
    assert len(notes) == 1
    assert thin(data, (count, data.num_pairs), notes) is data
    assert thin(data, (10, data.num_pairs), notes).num_questions == 10
    assert thin(data, (count, 3 * count), notes).positives.all()


def test_questions_of_the_test_set_are_removed_in_other_words_too(tmp_path):
    write_file(tmp_path / "train.jsonl", 40, asks="what in the world is")
    test = write_file(tmp_path / "test.jsonl", 20, asks="who was")
    assert not load_questions(str(tmp_path), None, tmp_path / "out").notes[1:]
    leaked = write_file(tmp_path / "leak", 6, asks="IS what, in the world").read_text()
    test.write_text(test.read_text() + leaked.replace('?"', ' ??"'))
    loaded = load_questions(str(tmp_path), None, tmp_path / "out")
    assert loaded.train.num_questions == 34
    assert not any("the world is 5?" in text for text in loaded.train.questions)
    assert any("6 of 40" in note for note in loaded.notes)
    test.write_text(write_file(tmp_path / "leak", 30, asks="what in the world is").read_text())
    with pytest.raises(KinspanError, match="--questions"):
        load_questions(str(tmp_path), None, tmp_path / "out")


def test_what_is_left_out_or_contradicts_itself_is_counted(tmp_path, caplog):
    rows = [json.loads(line) for line in write_file(tmp_path / "q.jsonl", 20).read_text().splitlines()]
    rows = [{**row, "label": 0} if row["question"] == "what is 7?" else row for row in rows]
    turned = [{**row, "answer": row["answer"].upper(), "label": 1 - row["label"]} for row in rows[:4]]
    caplog.set_level("INFO")
    loaded = load_questions(str(write_jsonl(tmp_path / "q.jsonl", rows + turned)), None, tmp_path / "out")
    assert loaded.train.num_questions == 19
    assert any("1 of 20" in note for note in loaded.notes)
    assert "q.jsonl: candidates with the label 0 that also have 1 for the same question: 4" in caplog.text


def test_a_dev_set_of_another_name_is_pooled_too_and_tables_of_no_split_are_named(tmp_path, caplog):
    caplog.set_level("INFO")
    for number, split in enumerate(("train", "val", "test", "more")):
        write_file(tmp_path / f"{split}.jsonl", 20 + number, asks=f"{split} {'a b c d e f'[: 3 * number]}")
    loaded = load_questions(str(tmp_path), None, tmp_path / "out")
    assert (loaded.train.num_questions, loaded.test.num_questions) == (41, 22)
    (tmp_path / "train.jsonl").rename(tmp_path / "training.jsonl")
    load_questions(str(tmp_path), None, tmp_path / "out")
    unread = [record.args[1] for record in caplog.records if "more.jsonl" in record.getMessage()]
    assert unread == ["more.jsonl", "more.jsonl, training.jsonl"]


def test_what_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    few, turned = write_file(tmp_path / "few.jsonl", 6), write_file(tmp_path / "turned.jsonl", 60, turned=True)
    for given in (str(few), str(turned), str(tmp_path / "empty"), f"wikiqa={tmp_path / 'empty'}"):
        with pytest.raises(KinspanError, match="--questions"):
            load_questions(given, None, tmp_path / "out")
    for split in ("train", "dev", "test"):
        write_file(tmp_path / f"{split}.jsonl", 20)
    (tmp_path / "train.jsonl").write_text('{"query": "a", "answer": "b", "label": 1}\n')
    with pytest.raises(KinspanError, match="columns"):
        load_questions(str(tmp_path), None, tmp_path / "out")
