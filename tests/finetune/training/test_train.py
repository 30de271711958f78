"""One run: it learns, keeps its best, stops when it should, and a killed run ends as an unbroken one."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from data_pipeline.errors import KinspanError
from finetune.evaluation.metrics import MAP, means, question_metrics
from finetune.ranking.ranker import load_ranker
from finetune.ranking.score import score_answers
from finetune.training import train
from finetune.training.config import FinetuneConfig
from finetune.training.engine import join_ranks
from finetune.training.plan import Stage, plan_stage
from finetune.training.train import train_ranker
from pretrain.checkpoints.reader import by_step
from pretrain.checkpoints.writer import Writer
from pretrain.modeling.pair_model import load_model
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.stop import Stopped, StopRequest

FAST = {"batch_size": 8, "micro_batch_size": 3, "learning_rate": 3e-3, "max_length": 32, "precision": "fp32"}
FAST |= {"log_steps": 2}
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
            what="fine-tuning",
            model=str(start),
            train=splits[0],
            dev=splits[1],
            test=splits[2] if config.test_every_validation else None,
            learning_rate=config.learning_rate,
            epochs=config.epochs,
            max_steps=config.max_steps,
            eval_steps=config.eval_steps,
            negatives_per_positive=config.negatives_per_positive,
            identity={"start": str(start), "learning_rate": config.learning_rate},
        )
        ranks = join_ranks(config)
        return train_ranker(config, replace(made, **(stage or {})), seed, tmp_path / name, ranks), tmp_path / name

    return run


def weights(folder):
    return load_file(str(folder / "best/model.safetensors"))


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def logged(folder, *splits):
    """The lines of the log without what is measured by the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{k: v for k, v in line.items() if k != "pairs_per_second"} for line in lines]
    return [line for line in lines if not splits or line["split"] in splits]


def untimed(summary):
    return {k: v for k, v in summary.items() if k != "wall_seconds"}


@pytest.mark.parametrize("loss", LOSSES)
def test_it_learns(loss, job, write_sets, answer_set):
    data = write_sets(train=40, dev=12)
    list_size, lr = {"list_size": 4}, 3e-3
    summary, folder = job(
        loss=loss, data=data, epochs=10, learning_rate=lr, batch_size=16, micro_batch_size=16, **list_size
    )
    first = logged(folder, "dev")[0]
    assert summary["dev_map"] > max(0.9, first[MAP])
    losses = [line["loss"] for line in logged(folder, "train")]
    assert np.mean(losses[-3:]) < 0.6 * np.mean(losses[:3])
    dev = answer_set(data, "dev")
    scores = score_answers(str(folder / "best"), dev, 32)
    assert means(question_metrics(dev, scores))[MAP] == pytest.approx(summary["dev_map"])


def test_the_best_is_kept_and_others_load_it(job, sets, answer_set):
    summary, folder = job(epochs=6, test_every_validation=True)
    dev = logged(folder, "dev")
    assert [line["step"] for line in dev] == [0, 3, 6, 9, 12, 15, 18]  # 19 pairs, the last batch of an epoch has 3
    best = max(dev, key=lambda line: line[MAP])
    assert (summary["best_step"], summary["dev_map"]) == (best["step"], best[MAP])
    assert len(logged(folder, "test")) == len(dev)
    assert not (folder / "checkpoints").exists()
    data = answer_set(sets, "dev")
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "best").eval()
    questions = [data.questions[q] for q in data.question_of]
    inputs = tokenizer(questions, data.answers.to_pylist(), padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = theirs(**inputs).logits[:, 0].double().numpy()
    assert means(question_metrics(data, scores))[MAP] == pytest.approx(summary["dev_map"])


@pytest.mark.parametrize("loss", LOSSES)
def test_how_a_batch_is_cut_does_not_matter(loss, job, make_model):
    still = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    runs = [
        job(f"micro-{micro}", start=still, loss=loss, list_size=3, micro_batch_size=micro, epochs=2, log_steps=1)
        for micro in (24, 3, 4)
    ]
    train_losses = [[line["loss"] for line in logged(folder, "train")] for _, folder in runs]
    assert len(train_losses[0]) >= 4
    for other in train_losses[1:]:
        np.testing.assert_allclose(other, train_losses[0], rtol=1e-5)


STAGES = [None, "zero0", "zero2", *(pytest.param(s, marks=pytest.mark.slow) for s in ("zero1", "zero3"))]


@contextmanager
def killed_in_step(monkeypatch, step):
    """A kill while that step, the first being 0, is under way."""
    update = train._Run.update

    def dies(run, groups, now):
        if now == step:
            raise Killed
        return update(run, groups, now)

    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "update", dies)
        with pytest.raises(Killed):
            yield


def equal_runs(one, two):
    """Whether two runs, each a summary and a folder, ended bit-identical."""
    assert untimed(one[0]) == untimed(two[0])
    assert logged(one[1]) == logged(two[1])
    return same(weights(one[1]), weights(two[1]))


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_ends_bit_identical(stage, job, monkeypatch):
    """Dropout on; killed within an epoch, and again while a checkpoint is written."""
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"epochs": 4, "eval_steps": 2}
    whole = job("whole", **settings)
    save = Writer.save

    def killed_while_saving_8(writer, engine, state):
        save(writer, engine, state)
        if state["step"] == 8:
            raise Killed

    with killed_in_step(monkeypatch, 5):
        job(**settings)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "save", killed_while_saving_8)
        with pytest.raises(Killed):
            job(**settings)
    assert equal_runs(whole, job(**settings))


def test_killed_within_an_epoch_it_loses_at_most_save_steps(job, monkeypatch, capsys):
    """The epoch has 10 steps, validations are far away, and the log's lines of 4 steps end between checkpoints."""
    settings = {"epochs": 2, "batch_size": 2, "micro_batch_size": 1, "save_steps": 3, "log_steps": 4}
    whole = job("whole", **settings)
    with killed_in_step(monkeypatch, 8):
        job(**settings)
    with killed_in_step(monkeypatch, 17):
        job(**settings)
    assert "step-00000006 at step 6" in capsys.readouterr().out
    again = job(**settings)
    assert "step-00000015 at step 15" in capsys.readouterr().out
    assert [line["step"] for line in logged(again[1], "train")] == [4, 8, 12, 16, 20]
    assert equal_runs(whole, again)


def ask_in_step(monkeypatch, step):
    """A SIGTERM while that step, the first being 1, is under way."""
    calls = []

    def wanted(request):
        calls.append(request)
        if len(calls) == step:
            request.ask("SIGTERM")
        return request.reason is not None

    monkeypatch.setattr(StopRequest, "wanted", wanted)


@pytest.mark.parametrize(
    ("stage", "step"),
    [(None, 4), (None, 5), (None, 9), *(pytest.param("zero2", s, marks=pytest.mark.slow) for s in (4, 5))],
)
def test_a_stopped_run_ends_as_if_nothing_had_been(stage, step, job, monkeypatch, capsys):
    """At a step that has a validation, which is left to the run that goes on, at one that has none, and at the last."""
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"eval_steps": 2, "log_steps": 3, "test_every_validation": True}
    whole = job("whole", **settings)
    with monkeypatch.context() as patch:
        ask_in_step(patch, step)
        with pytest.raises(Stopped) as caught:
            job(**settings)
    assert caught.value.code == 75
    assert f"stopped at step {step}, with a checkpoint (SIGTERM)" in capsys.readouterr().out
    assert equal_runs(whole, job(**settings))


def test_hours_stop_it_with_a_checkpoint(job, tmp_path):
    with pytest.raises(Stopped):
        job(max_hours=1e-9)
    assert [p.name for p in by_step(tmp_path / "run/checkpoints")] == ["step-00000001"]


def test_settings_of_the_runtime_may_change_on_resume(job, tmp_path):
    whole = job("whole", log_steps=4)
    with pytest.raises(Stopped):
        job(max_hours=1e-9, log_steps=4)
    assert equal_runs(whole, job(log_steps=4, save_steps=2, stall_minutes=3.0, max_skipped_steps=7))


def test_a_folder_in_use_is_refused(job, tmp_path):
    (tmp_path / "run").mkdir()
    with lock_folder(tmp_path / "run"), pytest.raises(KinspanError, match="run is in use by process"):
        job()


def test_a_run_none_of_whose_checkpoints_is_whole_refuses_and_keeps_them(job, tmp_path, capsys):
    with pytest.raises(Stopped):
        job(max_hours=1e-9, log_steps=1)
    (only,) = by_step(tmp_path / "run/checkpoints")
    (only / "state.json").write_text("")
    log = (tmp_path / "run/metrics.jsonl").read_bytes()
    with pytest.raises(KinspanError, match="none of the checkpoints in "):
        job()
    assert f"{only}: state.json is damaged" in capsys.readouterr().out
    assert (only / "weights.safetensors").exists()
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == log


def poison(monkeypatch, chosen, kind="loss"):
    """Makes the model's output NaN in the chosen steps, or leaves it as it is and makes a gradient infinite."""
    update = train._Run.update

    def hook(module, inputs, logits):
        if kind == "loss":
            return logits * float("nan")
        bias = next(p for n, p in module.named_parameters() if n.endswith("bias"))
        return logits + (bias.sum() - bias.sum().detach()).clamp_min(0).sqrt()  # zero, of infinite slope

    def poisoned(run, groups, step):
        handle = run.engine.module.register_forward_hook(hook) if step in chosen else None
        outcome = update(run, groups, step)
        if handle:
            handle.remove()
        return outcome

    monkeypatch.setattr(train._Run, "update", poisoned)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("stage", [None, "zero0", "zero2"])
def test_an_update_that_is_not_finite_is_skipped_and_counted(stage, kind, job, monkeypatch, capsys):
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"eval_steps": 3, "max_steps": 6, "log_steps": 1}
    poison(monkeypatch, [2, 4], kind)
    summary, folder = job(**settings)
    assert summary["skipped_steps"] == 2
    assert [line["step"] for line in logged(folder, "skipped")] == [3, 5]
    assert [line["step"] for line in logged(folder, "train")] == [1, 2, 4, 6]
    assert "step 4: a loss or gradient was not finite" in capsys.readouterr().out
    assert all(value.isfinite().all() for value in weights(folder).values())


def test_a_skipped_update_leaves_everything_as_it_was(job, monkeypatch):
    """The step after it does as if it had not been: weights, moments, and Adam's count of steps."""
    seen = []
    update = train._Run.update

    def recorded(run, groups, step):
        outcome = update(run, groups, step)
        optimizer = run.engine.optimizer.state_dict()["state"]
        everything = [*run.engine.module.parameters(), *(t for moments in optimizer.values() for t in moments.values())]
        seen.append([tensor.detach().clone() for tensor in everything])
        return outcome

    monkeypatch.setattr(train._Run, "update", recorded)
    poison(monkeypatch, [1])
    job(max_steps=3)
    assert all(torch.equal(one, two) for one, two in zip(seen[0], seen[1], strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(seen[1], seen[2], strict=True))


def test_nothing_but_skipped_updates_end_the_run_also_over_a_stop(job, monkeypatch):
    poison(monkeypatch, range(2, 9))
    with monkeypatch.context() as patch:
        ask_in_step(patch, 4)
        with pytest.raises(Stopped):
            job(max_skipped_steps=5)
    with pytest.raises(KinspanError, match="in 5 steps in a row, up to step 6: lower the learning rate"):
        job(max_skipped_steps=5, log_steps=1)


@pytest.mark.parametrize("step", [0, 2, 4])
def test_killed_while_the_best_is_written(step, job, monkeypatch):
    monkeypatch.setattr(train._Run, "measure", lambda run, _: {MAP: float(run.progress.step)})  # each is the best
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
    monkeypatch.setattr(train._Run, "measure", lambda run, _: {MAP: maps[run.progress.step]})
    summary, _ = job(patience=patience, eval_steps=1, max_steps=8, epochs=9)
    assert (summary["steps"], summary["best_step"], summary["dev_map"]) == (steps, best, maps[best])
    assert summary["stopped"] == ("at the last epoch" if steps == 8 else "early")


def test_dev_is_measured_without_dropout_and_training_has_it(job, make_model, monkeypatch):
    seen = []
    for name in ("measure", "update"):
        plain = getattr(train._Run, name)

        def noted(run, *arguments, plain=plain):
            result = plain(run, *arguments)
            seen.append(run.materials.ranker.training)
            return result

        monkeypatch.setattr(train._Run, name, noted)
    job(epochs=1, eval_steps=2)
    assert seen == [False, True, True, False, True, False]


def test_a_run_that_is_done_is_not_run_again(job, monkeypatch):
    one, folder = job()
    monkeypatch.setattr(train, "load_materials", None)
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
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"lock"}
    job(epochs=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(KinspanError, match="other is not empty and holds no run"):
        job("other")


def test_a_damaged_checkpoint_is_passed_over(job, monkeypatch, capsys, tmp_path):
    whole = job("whole", save_steps=1)
    with killed_in_step(monkeypatch, 5):
        job(save_steps=1)
    newest, before = by_step(tmp_path / "run/checkpoints")
    (newest / "state.json").write_text("{}")
    again = job(save_steps=1)
    said = capsys.readouterr().out
    assert "skipped a checkpoint that is not whole" in said
    assert f"resuming from {before}" in said
    assert equal_runs(whole, again)


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
    stage = Stage(what="run", model=str(model), train=data, dev=data, learning_rate=1e-5, epochs=4, identity={})
    made = plan_stage(config, stage, 1)
    assert (made.groups, made.epoch_steps, made.total, made.warmup) == (2, 2, 8, 4)  # 4 of 5 answers have negatives
    assert plan_stage(config, replace(stage, max_steps=5), 1).total == 5
