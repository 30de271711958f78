"""A tiny model, and data that it learns in seconds: an answer is what says "because"."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel, AutoModelForSequenceClassification

from finetune.data.answers import AnswerSet
from finetune.data.registry import load_split
from finetune.evaluation.metrics import Figures, compute_question_metrics
from tests.finetune.data.rows import make_answers
from tests.synthetic import write_model

WORDS = ["river", "stone", "green", "market", "engine", "winter", "paper", "silver", "garden", "music", "bridge"]


def _candidates(rng: random.Random, question: str, count: int) -> list[dict[str, Any]]:
    """Candidates of a question, the first its answer; their lengths differ."""
    rows = []
    for number in range(count):
        words = rng.choices(WORDS, k=rng.randint(3, 9))
        if number == 0:
            words.insert(rng.randrange(len(words)), "because")
        text = " ".join(words)
        rows.append({"question_id": question, "question": f"why {question}", "answer": text, "label": int(number == 0)})
    rng.shuffle(rows)
    return [{**row, "answer_id": f"{question}-{number}"} for number, row in enumerate(rows)]


@pytest.fixture(scope="session")
def write_sets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``write_sets(train=5, dev=4, test=4, candidates=4, seed="a")``: a folder for files=, of so many questions."""

    def write(candidates: int = 4, seed: str = "a", **questions: int) -> Path:
        folder = tmp_path_factory.mktemp("sets")
        for split, count in ({"train": 5, "dev": 4, "test": 4} | questions).items():
            rng = random.Random(f"{seed}-{split}")
            names = [f"{split} {rng.choice(WORDS)} {k}" for k in range(count)]
            rows = [row for name in names for row in _candidates(rng, name.replace(" ", "-"), candidates)]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return write


@pytest.fixture(scope="session")
def sets(write_sets: Callable[..., Path]) -> Path:
    """19 training pairs, for a last batch that is not full; 6 dev and 6 test questions of 5 candidates."""
    folder = write_sets(train=5, dev=6, test=6, candidates=5)
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    drop = [k for k, line in enumerate(lines) if json.loads(line)["label"] == 0][:6]
    (folder / "train.jsonl").write_text("".join(line for k, line in enumerate(lines) if k not in drop))
    return folder


@pytest.fixture(scope="session")
def answer_set() -> Callable[[Path, str], AnswerSet]:
    """``answer_set(folder, split)``"""
    return lambda folder, split: load_split(f"files={folder}", split)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_model("bert", num_labels=1, headless=False, **config)``: a folder of small random weights."""

    def make(family: str = "bert", headless: bool = False, tokenizer: Any = None, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(f"small-{family}")
        auto = AutoModel if headless else AutoModelForSequenceClassification
        return write_model(folder, auto, family, tokenizer=tokenizer, **{"num_labels": 1} | options)

    return make


@pytest.fixture(scope="session")
def model(make_model: Callable[..., Path]) -> Path:
    """A BERT with dropout and a head of one logit."""
    return make_model()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stages that were run in earnest, not found done."""
    from finetune.training import train

    stages, training = [], train._Run.train
    monkeypatch.setattr(train._Run, "train", lambda run: (stages.append(run.stage), training(run))[1])
    return stages


@pytest.fixture
def data() -> AnswerSet:
    """60 questions of 8 candidates, of which one is right; their texts look like HTML."""
    questions, candidates = 60, 8
    rng = np.random.default_rng(0)
    labels = np.zeros((questions, candidates), dtype=np.int8)
    labels[np.arange(questions), rng.integers(candidates, size=questions)] = 1
    asked = [f"<b>Who & {n}?</b>" for n in range(questions)]
    texts = [f"<script>{n}</script>" for n in range(labels.size)]
    return make_answers(asked, [candidates] * questions, texts, labels.ravel(), [f"d{n}" for n in range(labels.size)])


@pytest.fixture
def scores(data: AnswerSet) -> dict[str, np.ndarray]:
    """A good system, a bad one, and the good one again."""
    noise = np.random.default_rng(1).normal(size=data.num_pairs)
    return {"good": data.labels + noise / 2, "bad": noise, "again": data.labels + noise / 2}


@pytest.fixture
def systems(data: AnswerSet, scores: dict[str, np.ndarray]) -> dict[str, Figures]:
    """The figures of each question, by system."""
    return {name: compute_question_metrics(data, values) for name, values in scores.items()}
