"""Whole runs: resume, ranks, refusals. What is not about processes runs in the test's own, which has imported all."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from pretrain.config import PretrainConfig
from pretrain.modeling.pair_model import load_model
from pretrain.release.release import release
from pretrain.run import pretrain
from pretrain.status import read_status
from tests.cases import mark_slow
from tests.chaos.faults import Fault
from tests.chaos.starts import Start
from tests.pretrain.steps import expect_equal_runs, read_curve, read_log

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"max_steps": 24, "save_steps": 8, "eval_steps": 8, "eval_pairs": 40, "log_steps": 4, "max_length": 48}
SETTINGS |= {"global_batch_size": 15, "micro_batch_size": 4, "learning_rate": 1e-3, "precision": "fp32"}


def run(settings, ranks=1, fault=None):
    """Starts ranks by DeepSpeed's launcher, or one process; returns its output."""
    log = Path(settings["output_dir"]).with_suffix(".log")
    outcome = Start(settings, ranks, log, "hand" if ranks == 1 else "deepspeed").wait(fault, 1400)
    assert outcome.struck if fault else not any(outcome.statuses), outcome.output[-3000:]
    return outcome.output


@pytest.fixture
def settings(make_model, tiny_corpus, tmp_path):
    return {"corpus": tiny_corpus, "model": make_model(), "output_dir": tmp_path / "run", **SETTINGS}


def killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks):
    settings |= {"save_steps": 4}  # most steps come after the second checkpoint, as a busy machine is late to kill
    whole = {**settings, "output_dir": tmp_path / "whole"}
    pretrain(PretrainConfig(**whole)) if ranks == 1 else run(whole, ranks)
    run(settings, ranks, Fault("kill -9 all", "checkpoint", number=2))  # a new one, as it keeps whom it hits
    assert not (settings["output_dir"] / "summary.json").exists()
    deadline = time.monotonic() + 20  # a killed rank may take a moment to go
    while read_status(settings["output_dir"])["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert read_status(settings["output_dir"])["state"] == "not running"
    assert "resuming from" in run(settings, ranks)
    expect_equal_runs(settings["output_dir"], whole["output_dir"], 24)
    assert read_status(settings["output_dir"])["state"] == "complete"
    for split in ("train", "validation"):  # TensorBoard has each step once, in order, with the values of the log
        logged = read_log(settings["output_dir"], split, "step", "loss")
        assert read_curve(settings["output_dir"], f"loss/{split}") == [(step, round(loss, 3)) for step, loss in logged]


def test_a_killed_run_ends_bit_identical(settings, tmp_path):
    """Dropout on, ZeRO-2, killed between two checkpoints; from weights, whose loading leaves dropout off."""
    model, _ = load_model(str(settings["model"]), seed=1)
    model.classifier.save_pretrained(str(settings["model"]))
    killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "precision", "family", "objective"),
    [(s, "fp32", "bert", "ssp") for s in ("zero0", "zero1", "zero2", "zero3", "offload")]
    + [(s, "bf16", "bert", "ssp") for s in ("zero1", "zero2", "zero3")]
    + [(f"zero{k}", "fp32", *what) for k in range(4) for what in (("electra", "ssp"), ("bert", "all"))],
)
def test_a_killed_run_of_two_ranks_ends_bit_identical(
    stage, precision, family, objective, settings, tmp_path, make_model
):
    settings |= {"deepspeed_config": f"ds_configs/{stage}.json", "precision": precision}
    settings |= {"model": make_model(family), "objective": objective}
    killed_and_resumed_equals_uninterrupted(settings, tmp_path, ranks=2)


OBJECTIVES = ("ssp", "sp", "psd", "nsp", "sop", "ict", "all")
CASES = [(family, objective) for family in ("bert", "electra") for objective in OBJECTIVES]


@pytest.mark.parametrize(("family", "objective"), mark_slow(CASES, [("electra", "ssp")]))
def test_two_ranks_give_the_losses_of_one(family, objective, settings, tmp_path, make_model):
    """With masked language modelling (bert) and replaced-token detection (electra), in fp32, without dropout."""
    settings |= {"model": make_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)}
    settings |= {"objective": objective}
    settings |= {"global_batch_size": 7, "micro_batch_size": 2, "max_steps": 10, "save_steps": 10}
    one, two = ({**settings, "output_dir": tmp_path / name} for name in ("one", "two"))
    pretrain(PretrainConfig(**one))
    run(two, 2)
    names = ("step", "mlm_loss", "pair_loss", *(["rtd_loss"] if family == "electra" else []))
    losses = [read_log(folder["output_dir"], "train", *names) for folder in (one, two)]
    assert np.allclose(*losses, rtol=0, atol=1e-5)
    norms = [read_log(folder["output_dir"], "train", "grad_norm") for folder in (one, two)]
    assert np.allclose(*norms, rtol=1e-4)  # AdamW and clipping would hide a wrong constant in the losses


def test_a_run_leaves_what_people_look_for(settings, caplog):
    pretrain(PretrainConfig(**{**settings, "max_steps": 6, "profile": 1, "peak_tflops": 1.0}))
    folder = settings["output_dir"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["tokens"] > 0
    assert summary["last_validation"]["step"] == 6
    assert summary["config"]["learning_rate"] == 1e-3
    assert list((folder / "tensorboard").glob("events*"))
    assert yaml.safe_load((folder / "config.yaml").read_text())["max_steps"] == 6
    assert all((folder / name).exists() for name in ("curve.png", "trace.json.gz"))
    assert all(mfu > 0 for (mfu,) in read_log(folder, "train", "mfu_percent"))
    caplog.set_level("INFO")
    pretrain(PretrainConfig(**{**settings, "max_steps": 6}))
    assert "this run is complete" in caplog.text
    release(folder, folder / "release")
    assert {caplog.text.count(warning) for warning in summary["warnings"]} == {1}
    text = json.dumps(summary["deepspeed"]) + (folder / "run.json").read_text()
    assert str(ROOT) not in text


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path):
    """The pair loss ends below that of always predicting the share of positives, and the AUC above chance."""
    run({"config": ROOT / "launch/recipes/quickstart.yaml", "output_dir": tmp_path / "run"}, ranks=2)
    last = json.loads((tmp_path / "run/summary.json").read_text())["last_validation"]
    assert last["pair_loss"] < 0.49
    assert last["pair_auc"] > 0.6
