"""Hard negatives: what is hard, what is too near to a right answer, and the data set that comes of it."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from sentence_transformers.util import mine_hard_negatives

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune import mining
from finetune.data.answers import AnswerSet
from finetune.mining import MiningRules, embed, find_far, load_reranker, mine, mine_file
from finetune.ranking.encode import CutCounter
from finetune.training.config import FinetuneConfig
from finetune.training.stages import load_data

# How far candidates are from their question, in degrees
ANGLES = {"right": 20, "too near": 10, "nearest": 20.5, "near": 40, "farther": 50, "far": 100}


@pytest.fixture
def one() -> AnswerSet:
    """A question with its right answer, and others, each of which one of the other texts is right for."""
    texts = list(ANGLES)
    return AnswerSet(
        name="made",
        split="train",
        question_ids=texts,
        questions=["what?", *(f"who is {text}?" for text in texts[1:])],
        starts=np.arange(len(texts) + 1),
        answer_ids=pa.array(texts, pa.large_string()),
        answers=pa.array(texts, pa.large_string()),
        labels=np.ones(len(texts), dtype=np.int8),
    )


def vectors(angles):
    return np.array([[np.cos(np.radians(angle)), np.sin(np.radians(angle))] for angle in angles])


def negatives(data, rules, rank=None):
    corpus = data.distinct
    found = vectors([ANGLES[data.answers[row].as_py()] for row in corpus.rows])
    mined = mine(data, corpus, vectors([0] * data.num_questions), found, rules, rank)
    return [[data.answers[row].as_py() for row in rows] for rows in mined.chosen], mined


def test_what_scores_nearly_as_high_as_a_right_answer_is_dropped(one):
    (of_first, _, _, of_near, *_), mined = negatives(one, MiningRules(positive_share=0.95))
    assert of_first == ["near", "farther", "far"]  # cos 20.5 is .997 of cos 20
    assert of_near == ["farther", "far"]
    assert mined.dropped == sum((2, 2, 2, 3, 4, 5))  # of an answer farther away, all that are nearer
    assert negatives(one, MiningRules(positive_share=1.0))[0][0] == ["nearest", "near", "farther", "far"]
    assert negatives(one, MiningRules(positive_share=0.7))[0][0] == [
        "farther",
        "far",
    ]  # .7 of .940 is .658, and cos 50 .643
    assert negatives(one, MiningRules(negatives=1))[0][0] == ["near"]
    assert negatives(one, MiningRules(skip=3, negatives=1))[0][0] == ["farther"]


def test_the_bound_of_a_negative_cosine_lies_below_it():
    assert find_far(np.array([-0.1, -0.2, -0.22]), -0.2, 0.95).tolist() == [False, False, True]


class Vectors:
    """What ``mine_hard_negatives`` asks of a model, with vectors by their texts."""

    device = torch.device("cpu")

    def __init__(self, asked, found):
        self.asked, self.found = asked, found

    def encode_query(self, texts, **options):
        return np.array([self.asked[text] for text in texts])

    def encode_document(self, texts, **options):
        return np.array([self.found[text] for text in texts])

    def similarity(self, queries, documents):
        return torch.as_tensor(queries) @ torch.as_tensor(documents).T

    def similarity_pairwise(self, queries, documents):
        return (torch.as_tensor(queries) * torch.as_tensor(documents)).sum(-1)


@pytest.mark.parametrize("share", [0.95, 0.5, 1.0])
def test_negatives_are_those_of_sentence_transformers(share):
    """It looks through the whole pool where ``range_max`` says so; questions have one to three right answers here."""
    rng = np.random.default_rng(0)
    sizes, pool = rng.integers(1, 4, 60), [f"a{k}" for k in range(80)]
    texts = [text for size in sizes for text in rng.choice(pool, size, replace=False)]
    data = AnswerSet(
        name="made",
        split="train",
        question_ids=[f"q{k}" for k in range(60)],
        questions=[f"what is {k}?" for k in range(60)],
        starts=np.cumsum([0, *sizes]),
        answer_ids=pa.array([f"{k}" for k in range(len(texts))], pa.large_string()),
        answers=pa.array(texts, pa.large_string()),
        labels=np.ones(len(texts), dtype=np.int8),
    )
    own = data.answers.take(pa.array(data.distinct.rows)).to_pylist()
    asked, found = (rng.normal(size=(count, 4)) for count in (60, len(own)))
    asked, found = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (asked, found))
    mined = mine(data, data.distinct, asked, found, MiningRules(5, positive_share=share))
    ours = [[texts[row] for row in rows] for rows in mined.chosen]
    pairs = {"question": [data.questions[q] for q in data.question_of], "answer": texts}
    model = Vectors(dict(zip(data.questions, asked, strict=True)), dict(zip(own, found, strict=True)))
    labelled = mine_hard_negatives(
        Dataset.from_dict(pairs),
        model,
        relative_margin=1 - share,
        num_negatives=5,
        range_max=len(own),
        output_format="labeled-pair",
        verbose=False,
    )
    theirs: dict[str, list[str]] = {question: [] for question in data.questions}
    for row in labelled:
        theirs[row["question"]] += [] if row["label"] else [row["answer"]]
    assert ours == list(theirs.values())
    assert 0 < sum(map(len, ours)) < 300 if share == 0.5 else sum(map(len, ours))


def test_a_cross_encoder_decides(one):
    asked = []

    def rank(data):
        asked.append(data)
        texts = data.answers.to_pylist()
        return np.array([{"right": 0.9, "near": 0.8, "far": 0.86, "too near": 0.4}.get(text, 0.1) for text in texts])

    of_first = negatives(one, MiningRules(negatives=2), rank)[0][0]
    assert of_first == ["near", "too near"]  # "far" has more than .95 of .9
    assert asked[0].answers.to_pylist()[0] == "right"
    assert asked[0].questions == ["what?"]
    assert negatives(one, MiningRules(depth=2), rank)[0][0] == [
        "too near",
        "nearest",
    ]  # what the bi-encoder ranks first


def test_the_data_set_that_is_written_is_trained_on(sets, make_model, tmp_path):
    said = []
    model = make_model(headless=True)
    mine_file(
        f"files={sets}", tmp_path / "mined", str(model), rules=MiningRules(2, positive_share=1.0), say=said.append
    )
    rows = [json.loads(line) for line in (tmp_path / "mined/train.jsonl").read_text().splitlines()]
    source = [json.loads(line) for line in (sets / "train.jsonl").read_text().splitlines()]
    right = {(row["question"], row["answer"]) for row in source if row["label"]}
    assert {(row["question"], row["answer"]) for row in rows if row["label"]} == right
    wrong = [row for row in rows if not row["label"]]
    assert wrong
    assert not right & {(row["question"], row["answer"]) for row in wrong}
    # What is right for no training question is none: it may be right for one of dev or test.
    assert {row["answer"] for row in wrong} <= {answer for _, answer in right}
    facts = json.loads((tmp_path / "mined/mined.json").read_text())
    assert facts["mined"] == len(wrong)
    assert f"--train_data files={tmp_path / 'mined'}" in said[-1]


def test_models_of_the_other_kind_are_refused(sets, model, make_model, tmp_path):
    with pytest.raises(KinspanError, match="reads question and answer together: give it as --cross_encoder"):
        mine_file(f"files={sets}", tmp_path, str(model))
    encoder = str(make_model(headless=True))
    with pytest.raises(KinspanError, match="embeds each text alone: give it as --model"):
        mine_file(f"files={sets}", tmp_path, encoder, encoder, say=lambda _: None)
    with pytest.raises(KinspanError, match="--max_length 2 is too short for a text: use at least 3"):
        mine_file(f"files={sets}", tmp_path, encoder, max_length=2, say=lambda _: None)


def test_a_cross_encoder_without_finite_scores_is_refused_and_finds_no_empty_lists(one, monkeypatch):
    monkeypatch.setattr(mining, "is_bi_encoder", lambda name: False)
    scoring = lambda *_, **__: (lambda data: np.full(data.num_pairs, np.nan), 128)  # noqa: E731
    monkeypatch.setattr(mining, "load_scoring", scoring)
    rank = load_reranker("odd", 128, print, CutCounter())
    with pytest.raises(KinspanError, match="--cross_encoder odd: its score of candidate 0 is not finite"):
        negatives(one, MiningRules(), rank)


def test_questions_that_are_cut_are_counted_beside_answers(one, make_model):
    said = []
    embed(one, one.distinct, str(make_model(headless=True)), 3, said.append)
    assert [line.split(": ")[1] for line in said] == [
        "6 of 6 questions cut (--max_length 3)",
        "3 of 6 answers cut (--max_length 3)",
    ]


def test_what_is_right_for_another_question_of_the_same_text_is_no_negative(one):
    """Two forum questions that ask the same: each has the other's right answer among its candidates."""
    assert "near" in negatives(one, MiningRules())[0][0]
    asked = [*one.questions]
    asked[3] = " What? "  # whose right answer is "near"
    mined, _ = negatives(replace(one, questions=asked), MiningRules(positive_share=1.0))
    assert all("near" not in mined[question] and "right" not in mined[question] for question in (0, 3))
    assert "farther" in mined[0]


def test_few_questions_at_a_time_give_the_same(one, monkeypatch):
    together = negatives(one, MiningRules())[0]
    monkeypatch.setattr(mining, "MOST_COSINES", 1)
    assert negatives(one, MiningRules())[0] == together


def test_training_data_of_others_is_not_written_over(sets, make_model, tmp_path):
    before = (sets / "train.jsonl").read_bytes()
    with pytest.raises(KinspanError, match=r"holds a train\.jsonl that was not mined: choose another folder"):
        mine_file(f"files={sets}", sets, str(make_model(headless=True)), say=lambda _: None)
    assert (sets / "train.jsonl").read_bytes() == before
    (tmp_path / "table").mkdir()
    (tmp_path / "table/train.csv").write_text("question,answer,label\nwhy,since,1\n")
    with pytest.raises(KinspanError, match=r"holds a train\.csv that was not mined"):
        mine_file(f"files={tmp_path / 'table'}", tmp_path / "table", "none", say=lambda _: None)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_command_that_is_killed_at_a_file_begins_again(nth, sets, make_model, tmp_path, monkeypatch):
    arguments = f"files={sets}", tmp_path / "mined", str(make_model(headless=True))
    written = []

    def write(path, content):
        written.append(path)
        if len(written) == nth:
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(mining, "write_atomically", write)
    with pytest.raises(KeyboardInterrupt):
        mine_file(*arguments, say=lambda _: None)
    mine_file(*arguments, say=lambda _: None)
    assert (tmp_path / "mined/train.jsonl").is_file()


def test_columns_are_those_of_the_data(sets, make_model, tmp_path):
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for path in sets.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [{"query" if name == "question" else name: value for name, value in row.items()} for row in rows]
        (renamed / path.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    model, columns = str(make_model(headless=True)), "question=query"
    mined = tmp_path / "mined"
    mine_file(
        f"files={renamed}", mined, model, rules=MiningRules(2, positive_share=1.0), columns=columns, say=lambda _: None
    )
    settings = {"data": f"files={renamed}", "train_data": f"files={mined}", "columns": columns, "loss": "contrastive"}
    data = load_data(FinetuneConfig(**settings, output_dir="-"))
    assert 0 < data.train.labels.sum() < data.train.num_pairs
