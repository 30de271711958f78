"""Hard negatives: what is in the pool, what is too near to a right answer, and the data set that comes of it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.core.errors import KinspanError
from finetune.ranking.config import MineConfig
from finetune.ranking.mining import mine, mine_file
from finetune.training.config import FinetuneConfig
from finetune.training.stages import load_data
from tests.finetune.data.rows import make_answers

# How far candidates are from every question, in degrees
ANGLES = {"right": 20, "too near": 10, "nearest": 20.5, "near": 40, "farther": 50, "far": 100}


@pytest.fixture
def questions():
    """A question with its right answer, and others, each of which one of the other texts is right for."""
    texts = list(ANGLES)
    asked = ["what?", *(f"who is {text}?" for text in texts[1:])]
    return make_answers(asked, [1] * len(texts), texts, [1] * len(texts), split="train")


def vectors(angles):
    return np.array([[np.cos(np.radians(angle)), np.sin(np.radians(angle))] for angle in angles])


BI_ENCODER = SimpleNamespace(
    device=torch.device("cpu"),
    encode_query=lambda texts, **_: vectors([0] * len(texts)),
    encode_document=lambda texts, **_: vectors([ANGLES[text] for text in texts]),
    similarity=lambda queries, documents: torch.as_tensor(queries) @ torch.as_tensor(documents).T,
    similarity_pairwise=lambda a, b: (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1),
)


def negatives(data, cross_encoder=None, **rules):
    mined = mine(data, BI_ENCODER, cross_encoder, MineConfig("", "", **rules))
    return [[data.answers[row].as_py() for row, _ in of_question] for of_question in mined]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, ["near", "farther", "far"]),  # cos 20.5 is .997 of cos 20
        ({"positive_share": 1.0}, ["nearest", "near", "farther", "far"]),
        ({"positive_share": 0.7}, ["farther", "far"]),  # .7 of .940 is .658, and cos 50 .643
        ({"negatives": 1}, ["near"]),
        ({"negatives": 1, "depth": 2}, []),
    ],
)
def test_near_candidates_are_dropped(questions, rules, expected):
    assert negatives(questions, **rules)[0] == expected


def test_a_cross_encoder_decides(questions):
    scores = {"right": 0.9, "near": 0.8, "far": 0.86, "too near": 0.4}
    predict = lambda pairs, **_: torch.tensor([scores.get(text, 0.1) for _, text in pairs], dtype=torch.double)  # noqa: E731
    scorer = SimpleNamespace(predict=predict)
    assert negatives(questions, scorer, negatives=2)[0] == ["near", "too near"]  # "far" has more than .95 of .9


def test_right_answers_of_an_equal_question_are_no_negatives(questions):
    asked = [*questions.questions]
    asked[3] = " What? "  # whose right answer is "near"
    mined = negatives(replace(questions, questions=asked), positive_share=1.0)
    assert all("near" not in mined[number] and "right" not in mined[number] for number in (0, 3))
    assert "farther" in mined[0]


def test_the_mined_data_set_is_trained_on(sets, make_model, tmp_path):
    """Columns are those of the data; texts that are right for no training question are in no pool."""
    renamed, output = tmp_path / "renamed", tmp_path / "mined"
    renamed.mkdir()
    for path in sets.glob("*.jsonl"):
        (renamed / path.name).write_text(path.read_text().replace('"question":', '"query":'))
    encoder = str(make_model(headless=True))
    rules = {"negatives": 2, "positive_share": 1.0, "columns": "question=query"}
    for _ in range(2):  # the same command again replaces what it wrote
        _, mined = mine_file(MineConfig(f"files={renamed}", str(output), encoder, **rules))
    rows = [json.loads(line) for line in (output / "train.jsonl").read_text().splitlines()]
    source = [json.loads(line) for line in (sets / "train.jsonl").read_text().splitlines()]
    right = {(row["question"], row["answer"]) for row in source if row["label"]}
    wrong = {(row["query"], row["answer"]) for row in rows if not row["label"]}
    assert {(row["query"], row["answer"]) for row in rows if row["label"]} == right
    assert wrong
    assert not right & wrong
    assert {answer for _, answer in wrong} <= {answer for _, answer in right}
    assert json.loads((output / "mined.json").read_text())["mined"] == len(wrong) == sum(map(len, mined))
    settings = {"data": f"files={renamed}", "train_data": f"files={output}", "columns": "question=query"}
    data = load_data(FinetuneConfig(**settings, loss="contrastive", output_dir="-"))
    assert 0 < data.train.labels.sum() < data.train.num_pairs


def test_with_a_cross_encoder_of_transformers(sets, model, make_model, tmp_path):
    models = str(make_model(headless=True)), str(model)
    _, mined = mine_file(MineConfig(f"files={sets}", str(tmp_path), *models, negatives=2, positive_share=1.0))
    assert all(0 < score < 1 for of_question in mined for _, score in of_question)


def test_refusals(sets, model, make_model, tmp_path):
    encoder = str(make_model(headless=True))
    for flag, settings in (
        *[("--model", {"model": str(model)}), ("--cross_encoder", {"cross_encoder": encoder})],
        ("--cross_encoder", {"cross_encoder": str(make_model(num_labels=2))}),
        *[("--output_dir", {"output_dir": str(sets)}), ("--max_length", {"max_length": 2})],
    ):
        given = {"data": f"files={sets}", "output_dir": str(tmp_path / "a"), "model": encoder, **settings}
        with pytest.raises(KinspanError, match=flag):
            mine_file(MineConfig(**given))
