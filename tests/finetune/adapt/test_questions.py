"""Labelled questions as users have them: in one file, without a dev set, or far too many."""

import json

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt.questions import load_questions, subsample_negatives
from finetune.data.registry import load_split


def write_file(path, count, candidates=3, wrong=True, asks="what is"):
    rows = [
        {"question": f"{asks} {q}?", "answer": f"answer {q} {k}", "label": int(k == q % candidates or not wrong)}
        for q in range(count)
        for k in range(candidates)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_file_is_split_in_three_the_same_way_every_time(tmp_path):
    loaded = load_questions(str(write_file(tmp_path / "q.jsonl", 100)), None, tmp_path / "out")
    sets = [set(split.questions) for split in loaded.splits]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 100
    assert all(len(asked) > 10 for asked in sets)
    assert [split.split for split in loaded.splits] == ["train", "dev", "test"]
    again = load_questions(str(write_file(tmp_path / "q.jsonl", 120)), None, tmp_path / "out2")
    assert sets[2] <= set(again.test.questions)  # more questions leave those in the test set where they are


def test_what_is_written_is_what_is_used_and_test_is_kept_apart(tmp_path, sets):
    loaded = load_questions(f"files={sets}", None, tmp_path)
    assert not (tmp_path / "test").exists()  # not before it is known that they may be used
    loaded.write(tmp_path)
    for split in (loaded.train, loaded.dev):
        read = load_split(loaded.spec, split.split)
        assert (read.questions, read.answers.to_pylist()) == (split.questions, split.answers.to_pylist())
        np.testing.assert_array_equal(read.labels, split.labels)
    with pytest.raises(KinspanError, match="test"):
        load_split(loaded.spec, "test")
    assert load_split(f"files={tmp_path / 'test' / 'test.jsonl'}", "test").num_pairs == loaded.test.num_pairs


def test_dev_questions_stand_in_for_a_missing_train_split(tmp_path):
    for split in ("dev", "test"):
        write_file(tmp_path / f"{split}.jsonl", 60, asks=f"what is in {split}")
    loaded = load_questions(str(tmp_path), None, tmp_path / "out")
    assert loaded.train.num_questions + loaded.dev.num_questions == loaded.test.num_questions == 60


@pytest.mark.parametrize(("count", "candidates", "right", "kept"), [(100, 9, 1, 4), (30, 10, 8, 9)])
def test_a_subsampled_set_keeps_right_candidates_and_a_wrong_one(tmp_path, count, candidates, right, kept):
    rows = [
        {"question": f"what {q}?", "answer": f"answer {k}", "label": int(k < right)}
        for q in range(count)
        for k in range(candidates)
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_split(f"files={tmp_path}", "test")
    subsampled = subsample_negatives(data, 4 * count)
    assert subsampled.questions == data.questions
    assert subsampled.positives.tolist() == data.positives.tolist()
    assert np.diff(subsampled.starts).tolist() == [kept] * count
    assert subsample_negatives(data, data.num_pairs) is data


def test_overlaps_are_noted_and_a_contained_split_is_refused(tmp_path):
    train, _, test = (write_file(tmp_path / f"{name}.jsonl", 20, asks=name) for name in ("train", "dev", "test"))
    assert not any("share" in note for note in load_questions(str(tmp_path), None, tmp_path).notes)
    trained = train.read_text().splitlines(keepends=True)
    test.write_text(test.read_text() + "".join(trained[:6]))
    assert any("share 2" in note for note in load_questions(str(tmp_path), None, tmp_path).notes)
    test.write_text("".join(trained))
    with pytest.raises(KinspanError, match="--questions"):
        load_questions(str(tmp_path), None, tmp_path)


def test_what_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    few, right = (write_file(tmp_path / "few.jsonl", 6), write_file(tmp_path / "right.jsonl", 60, wrong=False))
    for given in (str(few), str(right), str(tmp_path / "empty"), f"wikiqa={tmp_path / 'empty'}"):
        with pytest.raises(KinspanError, match="--questions"):
            load_questions(given, None, tmp_path / "out")
    for split in ("train", "dev", "test"):
        write_file(tmp_path / f"{split}.jsonl", 20)
    (tmp_path / "train.jsonl").write_text('{"query": "a", "answer": "b", "label": 1}\n')
    with pytest.raises(KinspanError, match="--columns"):
        load_questions(str(tmp_path), None, tmp_path / "out")
