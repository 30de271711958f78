"""One run: it learns, keeps its best, stops when it should, and a killed run ends as an unbroken one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from data_pipeline.errors import KinspanError
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.ranking.ranker import load_ranker
from finetune.ranking.score import score_answers
from finetune.training import train
from finetune.training.config import FinetuneConfig
from finetune.training.engine import join_ranks
from finetune.training.train import Ranks, Stage, plan, train_ranker
from pretrain.modeling.pair_model import load_model

FAST = {"batch_size": 8, "micro_batch_size": 3, "learning_rate": 3e-3, "max_length": 32, "precision": "fp32"}
LOSSES = ("pointwise", "pairwise", "listwise")


class Killed(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


@pytest.fixture
def job(tmp_path, model, sets, answer_set):
    """``job(name="run", stage={}, **settings)``: runs it in ``tmp_path/name``; its summary and folder."""

    def run(name="run", stage=None, seed=1, start=model, data=sets, **settings):
        config = FinetuneConfig("files=x", **{"model": str(start), "epochs": 3, **FAST, **settings})
        splits = [answer_set(data, split) for split in ("train", "dev", "test")]
        made = Stage(
            "fine-tuning",
            str(start),
            *splits[:2],
            splits[2] if config.test_every_validation else None,
            config.learning_rate,
            config.epochs,
            config.max_steps,
            config.eval_steps,
            config.negatives_per_positive,
            {"start": str(start), "learning_rate": config.learning_rate},
        )
        ranks = Ranks(*join_ranks(config))
        return train_ranker(config, replace(made, **(stage or {})), seed, tmp_path / name, ranks), tmp_path / name

    return run


def weights(folder):
    return load_file(str(folder / "best/model.safetensors"))


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def untimed(summary):
    return {k: v for k, v in summary.items() if k != "wall_seconds"}


@pytest.mark.parametrize("loss", LOSSES)
def test_it_learns(loss, job, write_sets, answer_set):
    data = write_sets(train=40, dev=12)
    list_size, lr = {"list_size": 4}, 3e-3
    summary, folder = job(
        loss=loss, data=data, epochs=10, learning_rate=lr, batch_size=16, micro_batch_size=16, **list_size
    )
    first = next(line for line in logged(folder) if line["split"] == "dev")
    assert summary["dev_map"] > max(0.9, first[MAP])
    losses = [line["loss"] for line in logged(folder) if line["split"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    dev = answer_set(data, "dev")
    scores = score_answers(str(folder / "best"), dev, 32)
    assert compute_means(compute_question_metrics(dev, scores))[MAP] == pytest.approx(summary["dev_map"])


def test_the_best_is_kept_and_others_load_it(job, sets, answer_set):
    summary, folder = job(epochs=6, test_every_validation=True)
    dev = [line for line in logged(folder) if line["split"] == "dev"]
    assert [line["step"] for line in dev] == [0, 3, 6, 9, 12, 15, 18]  # 19 pairs, the last batch of an epoch has 3
    best = max(dev, key=lambda line: line[MAP])
    assert (summary["best_step"], summary["dev_map"]) == (best["step"], best[MAP])
    assert len([line for line in logged(folder) if line["split"] == "test"]) == len(dev)
    assert not (folder / "checkpoints").exists()
    data = answer_set(sets, "dev")
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "best").eval()
    questions = [data.questions[q] for q in data.question_of]
    inputs = tokenizer(questions, data.answers.to_pylist(), padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = theirs(**inputs).logits[:, 0].double().numpy()
    assert compute_means(compute_question_metrics(data, scores))[MAP] == pytest.approx(summary["dev_map"])


@pytest.mark.parametrize("loss", LOSSES)
def test_how_a_batch_is_cut_does_not_matter(loss, job, make_model):
    still = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    runs = [
        job(f"micro-{micro}", start=still, loss=loss, list_size=3, micro_batch_size=micro, epochs=2, eval_steps=1)
        for micro in (24, 3, 4)
    ]
    train_losses = [[line["loss"] for line in logged(folder) if line["split"] == "train"] for _, folder in runs]
    assert len(train_losses[0]) >= 4
    for other in train_losses[1:]:
        np.testing.assert_allclose(other, train_losses[0], rtol=1e-5)


STAGES = [None, "zero0", "zero2", *(pytest.param(s, marks=pytest.mark.slow) for s in ("zero1", "zero3"))]


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_ends_bit_identical(stage, job, monkeypatch):
    """Dropout on; killed within an epoch, and again while a checkpoint is written."""
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"epochs": 4, "eval_steps": 2}
    whole, whole_folder = job("whole", **settings)
    update, save = train._Run.update, train.checkpoint.Writer.save

    def killed_in_step_5(run, groups, step):
        if step == 5:
            raise Killed
        update(run, groups, step)

    def killed_while_saving_8(writer, engine, state):
        save(writer, engine, state)
        if state["step"] == 8:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "update", killed_in_step_5)
        with pytest.raises(Killed):
            job(**settings)
    with monkeypatch.context() as patch:
        patch.setattr(train.checkpoint.Writer, "save", killed_while_saving_8)
        with pytest.raises(Killed):
            job(**settings)
    summary, folder = job(**settings)
    assert untimed(summary) == untimed(whole)
    assert same(weights(folder), weights(whole_folder))
    assert logged(folder) == logged(whole_folder)


@pytest.mark.parametrize("step", [0, 2, 4])
def test_killed_while_the_best_is_written(step, job, monkeypatch):
    monkeypatch.setattr(train._Run, "measure", lambda run, *_: {MAP: float(run.progress.step)})  # each is the best
    whole, whole_folder = job("whole", epochs=1, eval_steps=2, max_steps=4, batch_size=4)
    save = train.save_ranker

    def killed(config, tokenizer, tensors, folder):
        save(config, tokenizer, tensors, folder)
        if (count := len(saved)) == step // 2:
            raise Killed
        saved.append(count)

    saved = []
    with monkeypatch.context() as patch:
        patch.setattr(train, "save_ranker", killed)
        with pytest.raises(Killed):
            job(epochs=1, eval_steps=2, max_steps=4, batch_size=4)
    summary, folder = job(epochs=1, eval_steps=2, max_steps=4, batch_size=4)
    assert untimed(summary) == untimed(whole)
    assert same(weights(folder), weights(whole_folder))
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in whole_folder.iterdir())


@pytest.mark.parametrize(
    ("patience", "maps", "steps", "best"),
    [
        (1, [0.5, 0.6, 0.6, 0.5, 0.9], 3, 1),  # two in a row that did not improve are more than one
        (1, [0.5, 0.4, 0.6, 0.5, 0.7, 0.1, 0.1], 6, 4),
        (0, [0.5, 0.4, 0.9], 1, 0),
        (5, [0.1 * k for k in range(9)], 8, 8),
    ],
)
def test_patience(patience, maps, steps, best, job, monkeypatch):
    monkeypatch.setattr(train._Run, "measure", lambda run, *_: {MAP: maps[run.progress.step]})
    summary, _ = job(patience=patience, eval_steps=1, max_steps=8, epochs=9)
    assert (summary["steps"], summary["best_step"], summary["dev_map"]) == (steps, best, maps[best])
    assert summary["stopped"] == ("at the last epoch" if steps == 8 else "early")


def test_dev_is_measured_without_dropout_and_training_has_it(job, make_model, monkeypatch):
    seen = []
    measure, update = train._Run.measure, train._Run.update
    monkeypatch.setattr(train._Run, "measure", lambda run, *a: (measure(run, *a), seen.append(run.ranker.training))[0])
    monkeypatch.setattr(train._Run, "update", lambda run, *a: (update(run, *a), seen.append(run.ranker.training))[0])
    job(epochs=1, eval_steps=2)
    assert seen == [False, True, True, False, True, False]


def test_a_run_that_is_done_is_not_run_again(job, monkeypatch):
    one, folder = job()
    monkeypatch.setattr(train, "load_ranker", None)
    assert job()[0] == one
    with pytest.raises(KinspanError, match=r"run holds a different run: its learning_rate is 0.003, now it is 0.1"):
        job(learning_rate=0.1)
    (folder / "run.json").write_text("[")
    with pytest.raises(KinspanError, match=r"run.json is damaged"):
        job()


def test_what_cannot_start_leaves_the_folder_free(job, make_model, tmp_path):
    for start, message in (
        ("nowhere/at-all", "no model at nowhere/at-all"),
        (make_model(num_labels=2), "a head of 2 labels.*--fresh_head"),
        (make_model(max_position_embeddings=16), "--max_length 32 is more than the 16 positions"),
    ):
        with pytest.raises(KinspanError, match=message):
            job(start=start)
    with pytest.raises(KinspanError, match="--warmup_steps 9 is not below the 9 steps of the fine-tuning"):
        job(warmup_steps=9)
    assert not (tmp_path / "run").exists()
    job(epochs=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(KinspanError, match="other is not empty and holds no run"):
        job("other")


def test_a_damaged_checkpoint_is_passed_over(job, monkeypatch, capsys, tmp_path):
    whole, _ = job("whole")
    update = train._Run.update

    def killed(run, groups, step):
        if step == 5:
            raise Killed
        update(run, groups, step)

    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "update", killed)
        with pytest.raises(Killed):
            job()
    [checkpoint] = tmp_path.glob("run/checkpoints/step-*")
    (checkpoint / "state.json").write_text("{}")
    summary, _ = job()
    assert "skipped a checkpoint that is not whole" in capsys.readouterr().out
    assert untimed(summary) == untimed(whole)


def test_a_fresh_head_on_a_classifier_of_several_labels(job, make_model):
    start = make_model(num_labels=3)
    _, folder = job(start=start, fresh_head=True, epochs=1)
    assert weights(folder)["classifier.weight"].shape == (1, 32)


def test_a_fresh_head_is_fresh(job, model):
    own = load_file(str(model / "model.safetensors"))
    for fresh in (False, True):
        _, folder = job(f"fresh-{fresh}", fresh_head=fresh, stage={"max_steps": 1, "learning_rate": 1e-9})
        kept = torch.allclose(weights(folder)["classifier.weight"], own["classifier.weight"], atol=1e-6)
        assert kept != fresh
        encoder = "bert.encoder.layer.0.output.dense.weight"
        assert torch.allclose(weights(folder)[encoder], own[encoder], atol=1e-6)


def test_a_fresh_head_is_not_the_one_that_pre_training_of_the_same_seed_began_with(tmp_path, model):
    """To that one its encoder would be fitted."""
    AutoModel.from_pretrained(model).save_pretrained(tmp_path / "base")
    drawn = load_model(str(tmp_path / "base"), seed=3)[0].classifier
    fresh, _ = load_ranker(str(model), seed=3, fresh_head=True)
    one, other = (head.weight.detach().flatten() for head in (drawn.classifier, fresh.classifier.classifier))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.5


def test_a_run_of_one_step(job):
    summary, _ = job(max_steps=1)
    assert summary["steps"] == 1


def test_a_plan(job, sets, answer_set, model):
    data = answer_set(sets, "train")
    config = FinetuneConfig("files=x", batch_size=8, loss="listwise", list_size=3, warmup_share=0.5)
    stage = Stage("run", str(model), data, data, None, 1e-5, 4, None, None, None, {})
    made = plan(config, stage, 1)
    assert (made.groups, made.epoch_steps, made.total, made.warmup) == (2, 2, 8, 4)  # 4 of 5 answers have negatives
    assert plan(config, replace(stage, max_steps=5), 1).total == 5
