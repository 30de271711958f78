"""Whole runs: resume, ranks, refusals. What is not about processes runs in the test's own, which has imported all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.release.release import write_release
from pretrain.run import pretrain
from pretrain.status import read_status
from tests.pretrain.steps import read_curve
from tests.programs import run_program, run_programs

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "max_steps": 24,
    "save_steps": 8,
    "eval_steps": 8,
    "eval_pairs": 40,
    "log_steps": 4,
    "global_batch_size": 15,
    "micro_batch_size": 4,
    "max_length": 48,
    "learning_rate": 1e-3,
    "precision": "fp32",
}


def test_a_start_that_is_refused_leaves_no_folder(tmp_path, monkeypatch):
    def refuse(allow_cpu):
        raise KinspanError("port 29500 is in use")

    monkeypatch.setattr("pretrain.setup.start_distributed", refuse)
    with pytest.raises(KinspanError, match="in use"):
        pretrain(PretrainConfig(output_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def environment():
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": path}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def command(settings, ranks=1):
    launcher = ["deepspeed", "--num_accelerators", str(ranks), "--master_port", free_port()]
    start = [sys.executable] if ranks == 1 else launcher
    return [*start, str(ROOT / "launch/pretrain.py"), *(f"--{k}={v}" for k, v in settings.items())]


def run(settings, ranks=1, timeout=300):
    """One rank without the time that its imports take."""
    if ranks == 1:
        done = run_program(*command(settings)[1:], cwd=ROOT, timeout=timeout)
    else:
        given = {"capture_output": True, "text": True, "env": environment(), "timeout": timeout}
        done = subprocess.run(command(settings, ranks), **given)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def run_here(settings):
    return pretrain(PretrainConfig(**{k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}))


def run_and_kill(settings, after_step, ranks=1):
    """Starts a run and kills all of it with SIGKILL once it has logged ``after_step``."""
    if ranks == 1:

        def strike(processes):
            wait_for_step(settings, after_step, lambda: psutil.Process(processes[0]).status() == psutil.STATUS_ZOMBIE)
            os.kill(processes[0], signal.SIGKILL)

        run_programs([command(settings)[1:]], cwd=ROOT, timeout=300, variables=[{}], meanwhile=strike)
        return
    process = subprocess.Popen(
        command(settings, ranks),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    wait_for_step(settings, after_step, lambda: process.poll() is not None)
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(started, timeout=60)  # on a busy machine a rank outlives its launcher by a moment


def wait_for_step(settings, step, is_over):
    metrics = Path(settings["output_dir"]) / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (metrics.exists() and f'"step": {step}, "split": "train"' in metrics.read_text()):
        assert not is_over(), "the run ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def weights(folder, step=24):
    return load_file(str(Path(folder) / f"checkpoints/step-{step:08d}/weights.safetensors"))


def logged(folder, *names, split="train"):
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [[line[name] for name in names] for line in lines if line["split"] == split]


def losses(folder, split="train"):
    return logged(folder, "step", "mlm_loss", "pair_loss", split=split)


def same(one, two):
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)


@pytest.fixture
def settings(make_model, tiny_corpus, tmp_path):
    return {"corpus": tiny_corpus, "model": make_model(), "output_dir": tmp_path / "run", **SETTINGS}


def killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks):
    whole = {**settings, "output_dir": tmp_path / "whole"}
    run(whole, ranks)
    run_and_kill(settings, 12, ranks)
    assert not (settings["output_dir"] / "summary.json").exists()
    assert read_status(settings["output_dir"]).state == "not running"
    said = run(settings, ranks)
    assert "resuming from" in said
    assert same(weights(whole["output_dir"]), weights(settings["output_dir"]))
    assert losses(whole["output_dir"]) == losses(settings["output_dir"])
    assert losses(whole["output_dir"], "validation") == losses(settings["output_dir"], "validation")
    assert read_status(settings["output_dir"]).state == "complete"
    one_curve(settings["output_dir"])


def one_curve(folder):
    """TensorBoard has each step once, in order, with the values of the log."""
    for split in ("train", "validation"):
        expected = [(step, round(loss, 3)) for step, loss in logged(folder, "step", "loss", split=split)]
        assert read_curve(folder, f"1 loss/loss/{split}") == expected


def test_a_killed_run_ends_bit_identical(settings, tmp_path):
    """Dropout on, ZeRO-2, killed between two checkpoints; from weights, whose loading leaves dropout off."""
    from pretrain.modeling.pair_model import load_model

    model, _ = load_model(str(settings["model"]), seed=1)
    model.classifier.save_pretrained(str(settings["model"]))
    killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "precision", "family", "objective"),
    [(s, "fp32", "bert", "ssp") for s in ("zero0", "zero1", "zero2", "zero3", "offload")]
    + [(s, "bf16", "bert", "ssp") for s in ("zero1", "zero2", "zero3")]
    + [
        (s, "fp32", *what)
        for s in ("zero0", "zero1", "zero2", "zero3")
        for what in (("electra", "ssp"), ("bert", "all"))
    ],
)
def test_a_killed_run_of_two_ranks_ends_bit_identical(
    stage, precision, family, objective, settings, tmp_path, make_model
):
    settings |= {"deepspeed_config": f"ds_configs/{stage}.json", "precision": precision}
    settings |= {"model": make_model(family), "objective": objective}
    killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks=2)


OBJECTIVES = ("ssp", "sp", "psd", "nsp", "sop", "ict", "all")
FAST = (("electra", "ssp"),)


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        pytest.param(f, o, marks=() if (f, o) in FAST else pytest.mark.slow)
        for f in ("bert", "electra")
        for o in OBJECTIVES
    ],
)
def test_two_ranks_give_the_losses_of_one(family, objective, settings, tmp_path, make_model):
    """With masked language modelling (bert) and replaced-token detection (electra), in fp32, without dropout."""
    settings |= {"model": make_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)}
    settings |= {"objective": objective}
    settings |= {"global_batch_size": 7, "micro_batch_size": 2, "max_steps": 10, "save_steps": 10}
    one, two = ({**settings, "output_dir": tmp_path / name} for name in ("one", "two"))
    run_here(one)
    run(two, 2)
    assert np.allclose(losses(one["output_dir"]), losses(two["output_dir"]), rtol=0, atol=1e-5)
    if family == "electra":
        detection = [logged(folder["output_dir"], "rtd_loss") for folder in (one, two)]
        assert np.allclose(*detection, rtol=0, atol=1e-5)
    norms = [logged(folder["output_dir"], "grad_norm") for folder in (one, two)]
    assert np.allclose(*norms, rtol=1e-4)  # AdamW and clipping would hide a wrong constant in the losses


def test_a_run_leaves_what_people_look_for(settings, caplog, monkeypatch):
    """And gives freed memory back to the system at each line of its log."""
    returned = []
    monkeypatch.setattr("pretrain.run.return_freed_memory", lambda: returned.append(True))
    run_here({**settings, "max_steps": 6, "release_every": 4})
    folder = settings["output_dir"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(returned) == sum(line["split"] == "train" for line in lines) == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["tokens"] > 0
    assert summary["last_validation"]["step"] == 6
    assert summary["config"]["learning_rate"] == 1e-3
    assert list((folder / "tensorboard").glob("events*"))
    assert (folder / "releases/step-00000004/model.safetensors").exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["max_steps"] == 6
    assert (folder / "curve.png").exists()
    caplog.set_level("INFO")
    run_here({**settings, "max_steps": 6, "release_every": 4})
    assert "this run is complete" in caplog.text
    text = json.dumps(summary["deepspeed"]) + (folder / "run.json").read_text()
    assert str(ROOT) not in text


def test_a_release_that_cannot_be_written_ends_no_run(settings, monkeypatch, caplog):
    def fail_first(run, weights, step, folder):
        if step == 1:
            raise KinspanError(f"{folder} cannot be written: the disk is full")
        write_release(run, weights, step, folder)

    monkeypatch.setattr("pretrain.run.write_release", fail_first)
    run_here({**settings, "max_steps": 2, "eval_pairs": 0, "release_every": 1})
    folder = settings["output_dir"]
    assert [path.name for path in (folder / "releases").iterdir()] == ["step-00000002"]
    assert "step 1 is not released" in caplog.text


@pytest.mark.slow
def test_masked_lm_learns(settings):
    settings |= {"max_steps": 60, "save_steps": 60, "eval_steps": 60, "eval_pairs": 200}
    settings |= {"global_batch_size": 40, "micro_batch_size": 40, "learning_rate": 3e-3}
    summary = run_here(settings)
    assert summary["last_validation"]["mlm_loss"] < summary["first_validation"]["mlm_loss"] - 1


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path):
    """The pair loss ends below that of always predicting the share of positives, and the AUC above chance."""
    run({"config": ROOT / "launch/recipes/quickstart.yaml", "output_dir": tmp_path / "run"}, ranks=2, timeout=1200)
    last = json.loads((tmp_path / "run/summary.json").read_text())["last_validation"]
    assert last["pair_loss"] < 0.49
    assert last["pair_auc"] > 0.6


def test_a_run_goes_on_where_auto_is_another_precision(settings, monkeypatch):
    """On another machine, or with a later version, once it is told which one the run has."""
    settings |= {"max_steps": 2, "eval_pairs": 0, "precision": "auto"}
    capabilities = {"avx512_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    done = run_here(settings)
    capabilities.clear()
    with pytest.raises(KinspanError, match="its precision_used is bf16, not fp32"):
        run_here(settings)
    assert run_here({**settings, "precision": "bf16"}) == done


@pytest.mark.slow
def test_too_little_memory_is_one_line(settings, tmp_path):
    """With address space for the model but not for a million pairs."""
    huge = {**settings, "micro_batch_size": 3_000_000, "global_batch_size": 3_000_000}
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    done = run_program(program, *command(huge)[1:], cwd=ROOT)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "lower --micro_batch_size" in done.stderr
