"""Runs that are stopped, that meet losses which are not finite, or whose disk is full, in this process."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_pipeline.core.errors import KinspanError
from pretrain import run
from pretrain.checkpoints import writer
from pretrain.checkpoints.reader import get_step, list_checkpoints
from pretrain.checkpoints.writer import full_weights
from pretrain.engine.stop import Stopped, _listening
from pretrain.release.release import release
from pretrain.run import pretrain
from pretrain.status import read_status
from pretrain.step import try_largest
from tests.cases import mark_slow
from tests.pretrain.steps import (
    expect_equal_runs,
    make_run,
    read_curve,
    read_log,
    read_weights,
    record_collectives,
    same,
    set_up_alone,
    start_engine,
    stopped_in_step,
    take_step,
)


@pytest.fixture(autouse=True)
def _messages(caplog):
    caplog.set_level("INFO")


@pytest.fixture(scope="module")
def make_config(make_model, tiny_corpus):
    """``make_config(folder, **settings)``: of a small run with dropout in that folder."""
    model = make_model()

    def make(folder, **settings):
        common = {"max_steps": 12, "save_steps": 4, "eval_steps": 4, "eval_pairs": 20, "log_steps": 2}
        common |= {"deepspeed_config": "ds_configs/zero2.json", "keep_checkpoints": 9}
        return make_run(tiny_corpus, model, folder, **common | settings)

    return make


@pytest.fixture
def config(make_config, tmp_path):
    """``config(name, **settings)``: of a run in the test's folder."""
    return lambda name="run [1]", **settings: make_config(tmp_path / name, **settings)


@pytest.fixture(scope="module")
def uninterrupted(make_config, tmp_path_factory):
    """The settings of a run that nothing happened to, and which has ended."""
    torch.set_num_threads(1)  # comes before the fixture that does so for a test
    whole = make_config(tmp_path_factory.mktemp("uninterrupted") / "whole")
    pretrain(whole)
    return whole


def at_step(monkeypatch, chosen, act):
    """``act(engine)`` just before the chosen steps; what it returns is called after."""
    plain = run.train_step

    def step_with(engine, *batches, step, weights):
        undo = act(engine) if step in chosen else None
        result = plain(engine, *batches, step=step, weights=weights)
        if undo:
            undo()
        return result

    monkeypatch.setattr(run, "train_step", step_with)


def poison(kind):
    """Makes the model's loss NaN, or leaves the loss as it is and makes a gradient infinite."""

    def hook(module, inputs, outputs):
        loss, sums, logits = outputs
        if kind == "loss":
            return loss * float("nan"), sums * float("nan"), logits
        bias = next(p for n, p in module.named_parameters() if n.endswith("bias"))
        zero = (bias.sum() - bias.sum().detach()).clamp_min(0).sqrt()  # of infinite slope
        return loss + zero, sums, logits

    return lambda engine: engine.module.register_forward_hook(hook).remove


@pytest.mark.parametrize(
    ("stopped_before", "background"),
    [(4, True), (6, False), *(pytest.param(s, True, marks=pytest.mark.slow) for s in (1, 6, 12))],
)
def test_a_stopped_run_ends_as_if_nothing_had_been(
    stopped_before, background, config, uninterrupted, monkeypatch, caplog
):
    """At a step with a checkpoint and validation, and at one without; after its last step too."""
    stopped = config("stopped [*]", async_checkpoints=background)
    with stopped_in_step(monkeypatch, stopped_before):
        pretrain(stopped)
    assert f"stopped at step {stopped_before} (SIGTERM)" in caplog.text
    assert read_status(Path(stopped.output_dir))["state"] == "not running"
    pretrain(stopped)
    assert read_status(Path(stopped.output_dir))["state"] == "complete"
    curve = [(step, round(loss, 3)) for step, loss in read_log(stopped.output_dir, "train", "step", "loss")]
    assert read_curve(Path(stopped.output_dir), "loss/train") == curve
    expect_equal_runs(stopped.output_dir, uninterrupted.output_dir, 12)


@pytest.mark.parametrize("hours", [False, True])
def test_a_stop_in_a_validation_ends_it_after_the_checkpoint_that_was_due(hours, config, uninterrupted, monkeypatch):
    """By a signal, or as --max_hours are over."""
    plain, stopped = run.evaluate, config("stopped")

    def evaluate(engine, *values):
        if (Path(stopped.output_dir) / "checkpoints/step-00000004").exists():
            _listening[0].max_hours = 0.0 if hours else None
            os.kill(os.getpid(), 0 if hours else signal.SIGTERM)
        return plain(engine, *values)

    with monkeypatch.context() as patch:
        patch.setattr(run, "evaluate", evaluate)
        with pytest.raises(Stopped):
            pretrain(stopped)
    assert read_log(stopped.output_dir, "validation", "step") == [[0]]
    pretrain(stopped)
    expect_equal_runs(stopped.output_dir, uninterrupted.output_dir, 12)


def test_hours_that_are_over_in_the_first_validation_let_each_start_make_updates(config):
    settings, steps = config(max_hours=1e-9, eval_steps=2, max_steps=4), []
    for _ in range(2):
        with pytest.raises(Stopped):
            pretrain(settings)
        steps += [max(map(get_step, list_checkpoints(Path(settings.output_dir) / "checkpoints")), default=0)]
    assert 0 < steps[0] < steps[1]


def test_a_run_that_ended_resumes_with_other_settings_and_says_so(config, monkeypatch):
    with pytest.raises(KinspanError, match="--resume_with"):
        pretrain(config(max_steps=4, resume_with=["learning_rate=1e-4"]))
    pretrain(config(max_steps=4))
    with pytest.raises(KinspanError, match="--resume_with"):
        pretrain(config(max_steps=4, resume_with=["max_steps=2"]))
    changed = config(max_steps=4, resume_with=["max_steps=8", "learning_rate=0.0005", "max_grad_norm=0.5"])
    norms = []
    at_step(monkeypatch, [5], lambda engine: norms.append(engine.optimizer.clip_grad))
    assert [pretrain(changed)["steps"], pretrain(changed)["steps"]] == [8, 8]
    assert max(rate for (rate,) in read_log(changed.output_dir, "train", "learning_rate")[2:]) <= 5e-4
    release(Path(changed.output_dir), Path(changed.output_dir) / "released")
    history = json.loads((Path(changed.output_dir) / "released/kinspan.json").read_text())["history"]
    settings = {"learning_rate": [1e-3, 5e-4], "max_grad_norm": [1.0, 0.5], "max_steps": [4, 8]}
    assert history == [{"step": 4, "settings": settings, "facts": {"total_steps": 4, "warmup_steps": 0}}]
    assert norms == [0.5]
    assert "0.001 to 0.0005" in (Path(changed.output_dir) / "released/README.md").read_text()
    with pytest.raises(KinspanError, match=r"--(learning_rate|max_steps|max_grad_norm)"):
        pretrain(config(max_steps=4))


def test_a_run_shortened_to_where_it_stands_is_validated_there(config):
    with pytest.raises(Stopped):
        pretrain(config(max_hours=1e-9))
    step = get_step(list_checkpoints(Path(config().output_dir) / "checkpoints")[0])
    assert pretrain(config(resume_with=[f"max_steps={step}"]))["last_validation"]["step"] == step


def test_a_run_none_of_whose_checkpoints_is_whole_refuses_and_keeps_them(config, caplog):
    with pytest.raises(Stopped):
        pretrain(config(max_hours=1e-9, eval_pairs=0))  # stops after its first update
    folder = Path(config().output_dir)
    (only,) = list_checkpoints(folder / "checkpoints")
    (only / "state.json").write_text("")
    log = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(KinspanError, match="none of the checkpoints in "):
        pretrain(config(eval_pairs=0))
    assert f"{only}: state.json is damaged" in caplog.text
    assert (only / "weights.safetensors").exists()
    assert (folder / "metrics.jsonl").read_bytes() == log


@pytest.mark.parametrize(
    ("stage", "precision"),
    [("zero0", "fp32"), ("zero2", "fp32"), ("zero2", "bf16")]
    + [pytest.param(s, p, marks=pytest.mark.slow) for s in ("zero1", "zero3", "offload") for p in ("fp32", "bf16")],
)
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_an_update_that_is_not_finite_is_skipped_whole(kind, stage, precision, config):
    """Weights, moments and Adam's step are as if the step had not been; in bf16 DeepSpeed skips it without a word."""
    settings = config(deepspeed_config=f"ds_configs/{stage}.json", precision=precision)

    def trained(steps, poisoned=()):
        (setup, engine), results = start_engine(settings), []
        for step in steps:
            remove = poison(kind)(engine) if step in poisoned else None
            results.append(take_step(setup, engine, step))
            if remove:
                remove()
        return results, full_weights(engine)

    results, with_poison = trained([0, 1, 2, 3], poisoned=[2])
    assert [bool(r.skipped) for r in results] == [False, False, True, False]
    assert not results[2].sums.any()
    assert results[3].sums.any()
    assert same(with_poison, trained([0, 1, 3])[1])


@pytest.mark.parametrize(("stage", "precision"), [("zero0", "fp32"), ("zero1", "bf16"), ("zero2", "fp32")])
def test_a_largest_batch_that_is_not_finite_leaves_no_trace(stage, precision, config):
    setup, engine = start_engine(config(deepspeed_config=f"ds_configs/{stage}.json", precision=precision))
    remove = poison("gradient")(engine)
    try_largest(engine, setup.train_stream, setup.layout)
    remove()
    first = take_step(setup, engine, 0)
    assert not first.skipped
    assert torch.isfinite(torch.as_tensor(first.grad_norm))


@pytest.mark.parametrize("stage", ["zero0", "zero2"])
def test_skipped_updates_are_counted_with_their_examples(stage, config, monkeypatch, caplog):
    settings = config(deepspeed_config=f"ds_configs/{stage}.json", max_skipped_steps=2)
    at_step(monkeypatch, [3, 6], poison("loss"))
    summary = pretrain(settings)
    assert summary["skipped_steps"] == 2
    assert read_log(settings.output_dir, "skipped", "step", "example", "count") == [[4, 30, 10], [7, 60, 10]]
    assert "kinspan show pairs --start 60 --count 10 --seed 1" in caplog.text
    assert [k for k, v in read_weights(settings.output_dir, 12).items() if not v.isfinite().all()] == []


def test_skips_in_a_row_count_over_a_stop(config, monkeypatch):
    at_step(monkeypatch, range(2, 12), poison("loss"))
    with stopped_in_step(monkeypatch, 4):
        pretrain(config(max_skipped_steps=5))
    with pytest.raises(KinspanError, match="up to step 6"):
        pretrain(config(max_skipped_steps=5))


def fill_disk_at(monkeypatch, step):
    """Has the disk full while the checkpoint of a step is written; returns the checkpoints that were there then."""
    save, seen = torch.save, []

    def fails(value, path, **options):
        if f"step-{step:08d}" in str(path):
            seen.append(sorted(p.name for p in Path(path).parents[2].glob("step-*") if p.suffix != ".tmp"))
            raise OSError(28, "No space left on device")
        save(value, path, **options)

    monkeypatch.setattr(writer.torch, "save", fails)
    return seen


def test_a_full_disk_costs_a_checkpoint_not_the_run(config, uninterrupted, monkeypatch, caplog):
    """The one of step 8 fails: the one of step 4 stays, and the run ends as if nothing had been."""
    full = config("full", keep_checkpoints=1)
    seen = fill_disk_at(monkeypatch, 8)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    pretrain(full)
    assert seen == [["step-00000004"]]
    (said,) = (line for line in caplog.messages if "step 8 could not be written" in line)
    assert "rank 0: " in said
    assert "the disk is full" in said  # which torch would not say
    assert "step-00000008" in said
    expect_equal_runs(full.output_dir, uninterrupted.output_dir, 12)
    assert not list((Path(full.output_dir) / "checkpoints").glob("*.tmp"))


def test_without_a_last_checkpoint_a_run_is_not_complete(config, monkeypatch):
    with monkeypatch.context() as patch:
        fill_disk_at(patch, 12)
        with pytest.raises(KinspanError, match="the last checkpoint could not be written"):
            pretrain(config())
    assert pretrain(config())["steps"] == 12


def test_a_step_waits_for_no_collective_on_the_host(config, monkeypatch):
    """Its batch was counted while the step before ran: one sum per step, begun before the step and read after it."""
    set_up_alone(config("warm"))  # makes the group
    events = record_collectives(monkeypatch)
    at_step(monkeypatch, range(6), lambda engine: events.append("step"))
    pretrain(config(max_steps=6, save_steps=6, eval_steps=6, log_steps=6, eval_pairs=0))
    first = events.index("step") - 1
    assert events[first : first + 12] == ["all_reduce begun", "step"] * 6
    assert not events[first + 12].startswith("all_reduce")  # nothing is begun that nobody waits for


WSD = {"lr_schedule": "wsd", "decay_share": 0.5, "warmup_steps": 0}


@pytest.mark.parametrize("stage", mark_slow([0, 2], [2]))
def test_a_longer_run_goes_on_from_before_the_decay(stage, config):
    """It ends bit for bit as a run of that length from its start, and the shorter one's model stays."""
    settings = {**WSD, "deepspeed_config": f"ds_configs/zero{stage}.json", "save_steps": 5, "keep_checkpoints": 1}
    pretrain(config("continued", **settings, max_steps=6))
    short = read_weights(config("continued").output_dir, 6)
    (Path(config("continued").output_dir) / "wandb_id").write_text("of 6 steps")
    summary = pretrain(config("continued", **settings, max_steps=12))
    pretrain(config("whole", **settings, max_steps=12))
    one, two = (Path(config(name).output_dir) for name in ("continued", "whole"))
    assert summary["steps"] == 12
    expect_equal_runs(one, two, 12)
    assert [p.name for p in list_checkpoints(one / "checkpoints")] == ["step-00000012", "step-00000006"]
    kept = one / "decayed/step-00000006"
    assert same(read_weights(kept, 6), short)
    assert read_status(kept)["state"] == "complete"
    assert [(folder / "wandb_id").exists() for folder in (kept, one)] == [True, False]
    assert [step for step, *_ in read_log(kept, "train", "step")][-1] == 6


@pytest.mark.parametrize(("begun", "changed"), [(WSD, {**WSD, "max_steps": 8}), ({}, {"max_steps": 16}), ({}, WSD)])
def test_a_run_is_not_cut_back_and_a_triangular_one_not_continued(begun, changed, config, monkeypatch):
    with stopped_in_step(monkeypatch, 5):
        pretrain(config(**begun))
    with pytest.raises(KinspanError, match="--output_dir"):
        pretrain(config(**changed))
    assert list_checkpoints(Path(config().output_dir) / "checkpoints")[0].name == "step-00000005"
