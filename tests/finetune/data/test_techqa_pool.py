"""TechQA as one pool, and the pairs of another community."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split


def write_questions(path, names, answers):
    records = [
        {
            "QUESTION_ID": name,
            "QUESTION_TITLE": f"title {name}",
            "QUESTION_TEXT": "text",
            "ANSWER": answer,
            "ANSWERABLE": "Y" if answer else "N",
        }
        for name, answer in zip(names, answers, strict=True)
    ]
    path.write_text(json.dumps(records))


@pytest.fixture
def folder(tmp_path):
    train = [f"T{n}" for n in range(11)]
    write_questions(tmp_path / "training_Q_A.json", train, ["shared", "shared", *(f"t {n}" for n in range(8)), ""])
    write_questions(tmp_path / "dev_Q_A.json", ["D1", "D2", "D3"], ["shared", "d 2", ""])
    return tmp_path


def test_splits_and_the_pool(folder):
    splits = {split: load_split(f"techqa_pool={folder}", split)[0] for split in ("train", "dev", "test")}
    assert {split: data.num_questions for split, data in splits.items()} == {"train": 8, "dev": 2, "test": 2}
    assert not set(splits["train"].question_ids) & set(splits["dev"].question_ids)
    assert splits["train"].labels.tolist() == [1] * 8
    assert load_split(f"techqa_pool={folder}", "test")[1] == [
        "techqa_pool test: questions that are not answerable, left out: 1"
    ]
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
    data, _ = load_split(f"askubuntu_qa={tmp_path}", "train")
    assert list(data.questions) == ["why is it slow ?", "who ?"]
    assert data.labels.tolist() == [1, 1]
    file.write_text("why ?\tbecause\na line without a tab\n")
    with pytest.raises(KinspanError, match=r"askubuntu-dev_Q_A.raw line 2: 1 fields, not 2: question, answer"):
        load_split(f"askubuntu_qa={tmp_path}", "train")
    with pytest.raises(KinspanError, match="no split dev"):
        load_split(f"askubuntu_qa={tmp_path}", "dev")
    (tmp_path / "training_Q_A.json").write_text("[]")
    with pytest.raises(KinspanError, match="no split train"):
        load_split(f"techqa_pool={tmp_path}", "train")
