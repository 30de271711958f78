"""TechQA: answerable questions, each with all distinct answers of its split."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split


def question(name, answer, answerable="Y"):
    return {
        "QUESTION_ID": name,
        "QUESTION_TITLE": f"title {name}",
        "QUESTION_TEXT": "\n\nand  text\n",
        "ANSWER": answer,
        "ANSWERABLE": answerable,
    }


def write(folder, name, *questions):
    (folder / name).write_text(json.dumps(questions))


def test_candidates_are_all_distinct_answers(tmp_path):
    questions = (
        question("1", "Restart  it."),
        question("2", "-", "N"),
        question("3", "Update."),
        question("4", "Update."),
    )
    write(tmp_path, "techqa-training_Q_A.json", *questions)
    write(tmp_path, "dev_Q_A.json", question("9", "Update."))
    train, notes = load_split(f"techqa={tmp_path}", "train")
    assert notes == ["techqa train: questions that are not answerable, left out: 1"]
    assert list(train.questions) == ["title 1 and text", "title 3 and text", "title 4 and text"]
    assert train.answers.to_pylist() == ["Restart it.", "Update."] * 3
    assert train.labels.tolist() == [1, 0, 0, 1, 0, 1]
    dev, _ = load_split(f"techqa={tmp_path}", "dev")
    assert dev.answer_ids[0] == train.answer_ids[1]  # the same answer in both


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not JSON"), ("{}", "not a JSON list"), ('[{"QUESTION_ID": 1}]', 'question 1: "QUESTION_ID", ')],
)
def test_what_is_no_such_file_is_one_line(tmp_path, text, reason):
    (tmp_path / "dev_Q_A.json").write_text(text)
    with pytest.raises(KinspanError, match=reason) as error:
        load_split(f"techqa={tmp_path}", "dev")
    assert "dev_Q_A.json" in str(error.value)


def test_counts_of_the_distribution(shared):
    data, _ = load_split(f"techqa={shared}/data/technicalqa", "dev")
    assert (data.num_questions, len(set(data.answers.to_pylist()))) == (158, 155)
    assert data.positives.tolist() == [1] * 158
