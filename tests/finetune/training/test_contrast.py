"""Bi-encoders that are fine-tuned: the gradient, what is no negative, and runs that end as if nothing had been."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import MAP, MRR, compute_means, compute_question_metrics
from finetune.ranking.model import score_answers
from finetune.ranking.ranker import load_own_tokenizer
from finetune.ranking.siamese import encode_answers, load_siamese_ranker
from finetune.training.groups import draw_examples
from finetune.training.trainers import SiameseTrainer
from pretrain.engine.layout import Layout
from pretrain.modeling.cpu.dropout import decide_dropout
from tests.finetune.data.rows import make_answers
from tests.finetune.training.runs import equal_runs, killed_in_step, logged
from tests.pretrain.steps import PlainEngine

TEMPERATURE = 0.05


@pytest.fixture
def questions():
    """Seven questions. The first two have an answer in common, the third has two answers, and the last says the same as
    the first."""
    texts = [
        [("shared answer of stone", 1), ("wrong river", 0), ("wrong bridge of paper", 0)],
        [("shared answer of stone", 1), ("wrong garden", 0), ("music", 0)],
        [("green silver", 1), ("silver engine market", 1), ("winter", 0), ("wrong river", 0)],
        *([(f"answer {n} because", 1), (f"wrong {n}", 0), (f"wrong {n} again", 0)] for n in range(3, 6)),
        [("another answer of the first", 1), ("wrong engine", 0), ("wrong winter", 0)],
    ]
    rows = [row for of_question in texts for row in of_question]
    asked = [f"why {word}" for word in ("river", "stone", "green", "market", "engine", "winter", "river")]
    return make_answers(asked, map(len, texts), *map(list, zip(*rows, strict=True)), split="train")


def plain_gradients(ranker, data, trainer, groups, step):
    """Of the mean loss, in one graph, one question after another, by the definition."""
    ranker.zero_grad()
    every = trainer.list_texts(groups, np.arange(len(groups)))
    with decide_dropout(trainer.seed, step, 0, every.ravel()):
        vectors = ranker(**trainer.texts.pack(every.ravel(), torch.device("cpu"))).view(*every.shape, -1)
    rows = groups.rows.reshape(every.shape[0], -1)
    text, asked = data.answers.to_pylist(), [data.questions[data.question_of[row]] for row in rows[:, 0]]
    right = {(data.questions[q], text[r]) for r, q in enumerate(data.question_of) if data.labels[r]}
    cells = [(n, 1) for n in range(len(rows))] + [(n, m) for n in range(len(rows)) for m in range(2, every.shape[1])]
    losses = []
    for n, question in enumerate(asked):
        own = vectors[n, 0] @ vectors[n, 1] / TEMPERATURE
        others = [vectors[n, 0] @ vectors[c] for c in cells if (question, text[rows[c[0], c[1] - 1]]) not in right]
        losses.append(torch.logsumexp(torch.stack([own, *(x / TEMPERATURE for x in others)]), 0) - own)
    torch.stack(losses).mean().backward()
    return sum(float(loss.detach()) for loss in losses), {
        name: p.grad.double().clone() for name, p in ranker.named_parameters()
    }


@pytest.mark.parametrize(("own_negatives", "dropout"), [(0, True), (2, True), (2, False)])
def test_the_gradient_is_that_of_one_graph(own_negatives, dropout, questions, make_model):
    place = str(make_model(initializer_range=0.2, headless=True))
    ranker = load_siamese_ranker(place, 1)
    if not dropout:
        for module in ranker.modules():
            if hasattr(module, "p"):
                module.p = 0.0
    groups = draw_examples(questions, 1, 0, own_negatives)
    texts = encode_answers(questions, load_own_tokenizer(place), 32)
    for micro in (8, 3, 1):
        layout = Layout(len(groups) + 1, micro, 1)  # the batch is a short one, as the last of an epoch is
        trainer = SiameseTrainer(data=questions, texts=texts, temperature=TEMPERATURE, layout=layout, rank=0, seed=3)
        ranker.train()
        loss, reference = plain_gradients(ranker, questions, trainer, groups, 4)
        ranker.zero_grad()
        engine = PlainEngine(ranker, trainer.layout.accumulation)
        outcome = trainer.update(engine, groups, np.arange(len(groups)), 4)
        assert outcome.sums.tolist() == pytest.approx([loss, len(groups)], rel=1e-5)
        for name, parameter in ranker.named_parameters():
            if name.endswith("key.bias"):  # has no gradient but rounding: adding to all scores changes no softmax
                continue
            largest = float(reference[name].abs().max())
            assert float((parameter.grad.double() - reference[name]).abs().max()) <= 1e-5 * largest, (name, micro)


def test_examples_are_drawn_from_the_questions_own(questions):
    groups = draw_examples(questions, 1, 0, 3)
    right, text = np.flatnonzero(questions.labels), questions.answers.to_pylist()
    assert sorted(groups.rows[groups.starts[:-1]].tolist()) == right.tolist()
    for rows in np.split(groups.rows, groups.starts[1:-1]):
        question = questions.question_of[rows[0]]
        own = [r for r in rows[1:] if questions.question_of[r] == question]
        wrong = [r for r in np.flatnonzero(questions.question_of == question) if not questions.labels[r]]
        assert sorted(own) == wrong  # all there are; others make up for the third
        answers = {text[r] for r in right if questions.question_of[r] == question}
        assert not answers & {text[r] for r in rows[1:]}
    with pytest.raises(KinspanError, match="--own_negatives 50: made train has 20 distinct candidates in all"):
        draw_examples(questions, 1, 0, 50)


FAST = {"loss": "contrastive", "batch_size": 4, "micro_batch_size": 3, "own_negatives": 1}


def test_it_learns_and_others_load_it(job, write_sets, answer_set):
    data = write_sets(train=24, dev=8)
    summary, folder = job(**{**FAST, "batch_size": 12, "own_negatives": 3}, data=data, epochs=12, learning_rate=3e-3)
    dev = logged(folder, "dev")
    assert summary["dev_map"] > max(0.6, dev[0][MAP])
    assert dev[0][MRR] == pytest.approx(dev[0][MAP])  # of questions with one right answer
    assert dev[0]["r@1"] <= dev[0]["r@5"] <= dev[0]["r@10"] == 1
    measured = answer_set(data, "dev")
    scores = score_answers(str(folder / "best"), measured, 32)
    assert compute_means(compute_question_metrics(measured, scores))[MAP] == pytest.approx(summary["dev_map"])
    card = (folder / "best/README.md").read_text()
    assert "SentenceTransformer(" in card
    assert "bi-encoder" in card
    ranker = load_siamese_ranker(str(folder / "best"), 0)
    texts = encode_answers(measured, load_own_tokenizer(str(folder / "best")), 32)
    numbers = np.unique(texts.answers)
    with torch.no_grad():
        ours = ranker.eval()(**texts.pack(numbers, torch.device("cpu"))).numpy()
    distinct = measured.answers.dictionary_encode().dictionary.to_pylist()
    theirs = SentenceTransformer(str(folder / "best")).encode(distinct)
    assert np.abs(ours - theirs).max() < 1e-5


def test_a_killed_run_ends_bit_identical(job, monkeypatch):
    settings = {**FAST, "epochs": 3, "save_steps": 1}
    plain = job("plain", **settings)
    with killed_in_step(monkeypatch, 3):
        job("killed", **settings)
    assert equal_runs(plain, job("killed", **settings))
    assert json.loads((plain[1] / "summary.json").read_text())["steps"] > 3
