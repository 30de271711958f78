"""TechQA: answerable questions with all distinct answers of a split or of both; pairs of another community."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split


def question(name, answer, answerable="Y"):
    asked = {"QUESTION_ID": name, "QUESTION_TITLE": f"title {name}", "QUESTION_TEXT": "\n\nand  text\n"}
    return {**asked, "ANSWER": answer, "ANSWERABLE": answerable}


def write(folder, name, *questions):
    (folder / name).write_text(json.dumps(questions))


def test_candidates_are_all_distinct_answers(tmp_path):
    answered = question("1", "Restart  it."), question("3", "Update."), question("4", "Update.")
    write(tmp_path, "techqa-training_Q_A.json", answered[0], question("2", "-", "N"), *answered[1:])
    write(tmp_path, "dev_Q_A.json", question("9", "Update."))
    train = load_split(f"techqa={tmp_path}", "train")
    assert list(train.questions) == ["title 1 and text", "title 3 and text", "title 4 and text"]
    assert train.answers.to_pylist() == ["Restart it.", "Update."] * 3
    assert train.labels.tolist() == [1, 0, 0, 1, 0, 1]
    dev = load_split(f"techqa={tmp_path}", "dev")
    assert dev.answer_ids[0] == train.answer_ids[1]  # the same answer in both


def test_counts_of_the_distribution(shared):
    data = load_split(f"techqa={shared}/data/technicalqa", "dev")
    assert (data.num_questions, len(set(data.answers.to_pylist()))) == (158, 155)
    assert data.positives.tolist() == [1] * 158


def test_splits_and_the_pool(tmp_path):
    train = ["shared", "shared", *(f"t {n}" for n in range(8))]
    named = [question(f"T{n}", answer) for n, answer in enumerate(train)]
    write(tmp_path, "training_Q_A.json", *named, question("T10", "-", "N"))
    write(tmp_path, "dev_Q_A.json", question("D1", "shared"), question("D2", "d 2"), question("D3", "-", "N"))
    splits = {split: load_split(f"techqa_pool={tmp_path}", split) for split in ("train", "dev", "test")}
    assert {split: data.num_questions for split, data in splits.items()} == {"train": 8, "dev": 2, "test": 2}
    assert not set(splits["train"].question_ids) & set(splits["dev"].question_ids)
    assert splits["train"].labels.tolist() == [1] * 8
    pool = {"shared", "d 2", *(f"t {n}" for n in range(8))}
    for split in ("dev", "test"):
        for rows in splits[split].question_slices():
            assert set(splits[split].answers[rows.start : rows.stop].to_pylist()) == pool
            assert splits[split].labels[rows].sum() == 1
    names = dict(zip(splits["dev"].answers.to_pylist(), splits["dev"].answer_ids.to_pylist(), strict=True))
    assert names == dict(zip(splits["test"].answers.to_pylist(), splits["test"].answer_ids.to_pylist(), strict=True))


def test_pairs_of_another_community(tmp_path):
    file = tmp_path / "askubuntu-dev_Q_A.raw"
    file.write_text("why is  it slow ?\tit is old\nwho ?\tyou\n")
    data = load_split(f"askubuntu_qa={tmp_path}", "train")
    assert list(data.questions) == ["why is it slow ?", "who ?"]
    assert data.labels.tolist() == [1, 1]
    file.write_text("why ?\tbecause\na line without a tab\n")
    with pytest.raises(KinspanError, match=r"askubuntu-dev_Q_A.raw line 2"):
        load_split(f"askubuntu_qa={tmp_path}", "train")
