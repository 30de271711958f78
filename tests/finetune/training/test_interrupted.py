"""Runs that are killed, that are stopped, that meet losses which are not finite: they end as if nothing had been."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from finetune.evaluation.metrics import MAP
from finetune.training import setup, train
from pretrain.checkpoints.writer import Writer
from tests.cases import mark_slow
from tests.chaos.starts import environment, free_port
from tests.finetune.training.runs import Killed, equal_runs, killed_in_step, logged, weights
from tests.pretrain.steps import stopped_in_step

ROOT = Path(__file__).resolve().parents[3]
STAGES = mark_slow((None, "zero0", "zero2", "zero3"), (None, "zero2"))


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


@pytest.mark.parametrize("negatives_from", [None, "corpus"])
def test_a_killed_run_draws_the_negatives_of_its_epoch_again(job, monkeypatch, negatives_from):
    """Killed in the second epoch, of 2 updates, and in the third."""
    settings = {"epochs": 4, "negatives_per_question": 2, "negatives_from": negatives_from, "save_steps": 1}
    whole = job("whole", **settings)
    for step in (3, 5):
        with killed_in_step(monkeypatch, step):
            job(**settings)
    assert equal_runs(whole, job(**settings))
    assert whole[0]["steps"] == 8


def test_killed_within_an_epoch_it_loses_at_most_save_steps(job, monkeypatch):
    """The epoch has 10 steps, validations are far away, and the log's lines of 4 steps end between checkpoints."""
    settings = {"epochs": 2, "batch_size": 2, "micro_batch_size": 1, "save_steps": 3, "log_steps": 4}
    whole = job("whole", **settings)
    for step in (8, 17):
        with killed_in_step(monkeypatch, step):
            job(**settings)
    again = job(**settings)
    assert [line["step"] for line in logged(again[1], "train")] == [4, 8, 12, 16, 20]
    assert equal_runs(whole, again)


@pytest.mark.parametrize(
    ("stage", "step"),
    [(None, 4), (None, 5), (None, 9), *(pytest.param("zero2", s, marks=pytest.mark.slow) for s in (4, 5))],
)
def test_a_stopped_run_ends_as_if_nothing_had_been(stage, step, job, monkeypatch):
    """At a step that has a validation, which is left to the run that goes on, at one that has none, and at the last."""
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"eval_steps": 2, "log_steps": 3, "test_every_validation": True}
    whole = job("whole", **settings)
    with stopped_in_step(monkeypatch, step):
        job(**settings)
    assert equal_runs(whole, job(**settings))


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("stage", [None, "zero0"])
def test_an_update_that_is_not_finite_is_skipped_and_counted(stage, kind, job, monkeypatch):
    settings = {"deepspeed_config": f"ds_configs/{stage}.json"} if stage else {}
    settings |= {"eval_steps": 3, "max_steps": 6, "log_steps": 1}
    poison(monkeypatch, [2, 4], kind)
    summary, folder = job(**settings)
    assert summary["skipped_steps"] == 2
    assert [line["step"] for line in logged(folder, "skipped")] == [3, 5]
    assert [line["step"] for line in logged(folder, "train")] == [1, 2, 4, 6]
    assert all(value.isfinite().all() for value in weights(folder).values())


@pytest.mark.parametrize("step", [0, 2, 4])
def test_killed_while_the_best_is_written(step, job, monkeypatch):
    monkeypatch.setattr(train._Run, "measure", lambda run, _: {MAP: float(run.progress.step)})  # each is the best
    settings = {"epochs": 1, "eval_steps": 2, "max_steps": 4, "batch_size": 4}
    whole = job("whole", **settings)
    save = setup.save_ranker

    def killed(*values):
        save(*values)
        if (count := len(saved)) == step // 2:
            raise Killed
        saved.append(count)

    saved = []
    with monkeypatch.context() as patch:
        patch.setattr(setup, "save_ranker", killed)
        with pytest.raises(Killed):
            job(**settings)
    again = job(**settings)
    assert equal_runs(whole, again)
    assert sorted(p.name for p in again[1].iterdir()) == sorted(p.name for p in whole[1].iterdir())


def start(settings, world):
    """The ranks of ``launch/finetune.py``, each a process that was started by hand."""
    command = [sys.executable, str(ROOT / "launch/finetune.py"), *(f"--{k}={v}" for k, v in settings.items())]
    group = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {} for rank in range(world)]
    common = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, env=environment(**variables), **common) for variables in ranks]


def strike(ranks, folder, step, number):
    """Sends the signal to all ranks once the log has reached the step; the last step that it has then."""
    deadline = time.monotonic() + 240
    while not (lines := logged(folder) if (folder / "metrics.jsonl").exists() else []) or lines[-1]["step"] < step:
        assert time.monotonic() < deadline
        assert all(rank.poll() is None for rank in ranks), ranks[0].communicate()[0]
        time.sleep(0.01)
    for rank in ranks:
        rank.send_signal(number)
    return lines[-1]["step"]


def ended(ranks):
    """The statuses of all ranks, and what rank 0 said."""
    said = [rank.communicate(timeout=240)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said[0]


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_processes_that_are_killed_and_stopped_within_an_epoch_end_bit_identical(world, write_sets, model, tmp_path):
    """An epoch has 100 steps: SIGKILL costs at most save_steps of them, SIGTERM none."""
    settings = {"data": f"files={write_sets(train=50)}", "model": model, "seeds": 1, "epochs": 1, "batch_size": 2}
    settings |= {"log_steps": 1, "save_steps": 8, "max_length": 32, "precision": "fp32", "learning_rate": 1e-3}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, said = ended(start({**settings, "output_dir": whole}, world))
    assert status == [0] * world, said

    ranks = start({**settings, "output_dir": broken}, world)
    reached = strike(ranks, broken / "seed-1", 20, signal.SIGKILL)
    assert ended(ranks)[0] == [-signal.SIGKILL] * world

    ranks = start({**settings, "output_dir": broken}, world)
    strike(ranks, broken / "seed-1", 50, signal.SIGTERM)
    status, said = ended(ranks)
    assert status == [75] * world, said
    assert int(re.search(r"resuming from \S+ at step (\d+)", said).group(1)) >= reached - 8
    stopped = int(re.search(r"stopped at step (\d+) \(SIGTERM\)", said).group(1))

    status, said = ended(start({**settings, "output_dir": broken}, world))
    assert status == [0] * world, said
    assert int(re.search(r"resuming from \S+ at step (\d+)", said).group(1)) == stopped
    summaries = [json.loads((folder / "seed-1/summary.json").read_text()) for folder in (whole, broken)]
    assert equal_runs(*zip(summaries, (whole / "seed-1", broken / "seed-1"), strict=True))
