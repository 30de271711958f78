"""Pre-training with a probe: the run is the same as without, and the probe sees the model as it is released."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification

import launch.preflight
import launch.pretrain
from data_pipeline.core.errors import KinspanError
from finetune.training.probe import make_probe
from pretrain.config import PretrainConfig
from pretrain.modeling.families import FAMILIES
from pretrain.run import pretrain
from pretrain.setup import find_unused_flags
from tests.cases import mark_slow
from tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"map", "mrr", "p@1", "ndcg@10"}


@pytest.fixture
def questions(tmp_path):
    """A data set of 12 questions of 6 candidates, as files=FOLDER."""
    folder = tmp_path / "questions"
    folder.mkdir()
    for split in ("train", "dev"):
        lines = [
            {"question": f"what is {q} of {split}?", "answer": f"{q} times {c} is {q * c}", "label": int(c == q % 6)}
            for q in range(12)
            for c in range(6)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"files={folder}"


@pytest.fixture
def settings(make_model, tiny_corpus, tmp_path):
    return {
        "corpus": str(tiny_corpus),
        "model": str(make_model()),
        "output_dir": str(tmp_path / "run"),
        "max_steps": 5,
        "save_steps": 5,
        "eval_steps": 5,
        "eval_pairs": 10,
        "log_steps": 1,
        "global_batch_size": 6,
        "micro_batch_size": 3,
        "max_length": 48,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "probe_steps": 2,
        "probe_pairs": 20,
    }


def run(settings):
    config = PretrainConfig(**settings)
    return pretrain(config, make_probe(config.probe, num_pairs=config.probe_pairs, every_steps=config.probe_steps))


def lines(folder, split):
    every = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    timed = ("tokens_per_second", "data_wait_percent", "mfu_percent")
    return [{k: v for k, v in line.items() if k not in timed} for line in every if line["split"] == split]


def same_run(one, two, step=5):
    """Every weight, and every figure of training and validation."""
    a, b = (load_file(str(Path(f) / f"checkpoints/step-{step:08d}/weights.safetensors")) for f in (one, two))
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert all(lines(one, split) == lines(two, split) for split in ("train", "validation"))


@pytest.mark.parametrize("family", mark_slow(FAMILIES, ("bert", "electra")))
def test_the_run_is_the_same_with_and_without(family, settings, questions, make_model, tmp_path):
    """Dropout on; ELECTRA with replaced-token detection."""
    settings |= {"model": str(make_model(family))}
    run({**settings, "output_dir": str(tmp_path / "without")})
    summary = run({**settings, "probe": questions})
    probed = lines(settings["output_dir"], "probe")
    assert [line["step"] for line in probed] == [0, 2, 4, 5]
    assert all(set(line) == {"step", "split", *FIGURES} for line in probed)
    assert (summary["first_probe"], summary["last_probe"]) == (probed[0], probed[-1])
    same_run(tmp_path / "without", settings["output_dir"])
    run_folder = Path(settings["output_dir"])
    assert not (run_folder / "probe").exists()
    assert questions not in (run_folder / "run.json").read_text()  # a path


@pytest.mark.slow
def test_two_ranks_with_parted_weights_and_shared_embeddings(settings, questions, make_model, tmp_path):
    """Replaced-token detection under ZeRO 3: rank 0 probes, the other one waits."""
    settings |= {"model": str(make_model("electra")), "deepspeed_config": "ds_configs/zero3.json"}
    settings |= {"embedding_sharing": "disentangled"}
    for name, own in (("without", {}), ("with", {"probe": questions})):
        run_two_ranks({**settings, **own, "output_dir": str(tmp_path / name)})
    assert [line["step"] for line in lines(tmp_path / "with", "probe")] == [0, 2, 4, 5]
    same_run(tmp_path / "without", tmp_path / "with")


def run_two_ranks(settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    flags = [f"--{name}={value}" for name, value in settings.items()]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["deepspeed", "--num_accelerators=2", f"--master_port={port}", str(ROOT / "launch/pretrain.py"), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": path},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_probe_gets_what_a_release_would_be(settings):
    """The weights at that step; the first ones those that the run starts with."""
    biases = []

    def probe(folder):
        model = AutoModelForSequenceClassification.from_pretrained(str(folder))
        biases.append(float(model.classifier.bias.detach()[0]))
        return {"map": 0.5}

    pretrain(PretrainConfig(**settings, probe="its own"), probe)
    last = load_file(str(Path(settings["output_dir"]) / "checkpoints/step-00000005/weights.safetensors"))
    assert biases[0] == pytest.approx(np.log(0.2 / 0.8))  # that of a fresh head: one pair in five is positive
    assert len(set(biases)) == 4
    assert biases[-1] == float(last["classifier.classifier.bias"][0])


def test_a_resumed_run_has_each_probe_once(settings):
    """Resumed from step 2 of 5: the line of step 2 was written before its checkpoint, that of step 4 is taken back."""
    steps = []

    def probe(folder):
        steps.append(json.loads((folder / "kinspan.json").read_text())["step"])
        return {"map": len(steps) / 10}

    config = PretrainConfig(**{**settings, "save_steps": 2, "keep_checkpoints": 3}, probe="its own")
    pretrain(config, probe)
    folder = Path(settings["output_dir"])
    for name in ("step-00000004", "step-00000005"):
        (folder / f"checkpoints/{name}/manifest.json").unlink()
    pretrain(config, probe)
    assert steps == [0, 2, 4, 5, 4, 5]
    assert [(line["step"], line["map"]) for line in lines(folder, "probe")] == [(0, 0.1), (2, 0.2), (4, 0.5), (5, 0.6)]


def test_the_probe_may_change_between_the_parts_of_a_run(settings):
    pretrain(PretrainConfig(**settings, probe="its own"), lambda folder: {"map": 0.5})
    assert pretrain(PretrainConfig(**{**settings, "probe_steps": 3, "probe_pairs": 7}))["steps"] == 5


def test_settings_of_a_probe_that_is_not_asked_for_are_named():
    (note,) = find_unused_flags(PretrainConfig(probe_steps=3, probe_pairs=7), "mlm")
    assert note == "ignored, as there is no --probe: --probe_steps and --probe_pairs"
    assert find_unused_flags(PretrainConfig(probe="wikiqa=W", probe_steps=3), "mlm") == []


def test_a_probe_that_is_asked_for_and_not_given_is_refused(settings):
    with pytest.raises(KinspanError, match="make_probe"):
        pretrain(PretrainConfig(**settings, probe="wikiqa=absent"))


def test_a_bad_one_is_refused_before_anything_starts(settings, tmp_path):
    arguments = ("--probe=wikiqa=absent", f"--output_dir={tmp_path / 'x'}")
    done = run_program(ROOT / "launch/pretrain.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: --probe wikiqa=absent: no split train")
    assert not (tmp_path / "x").exists()


def test_a_run_whose_ranking_falls_while_its_loss_improves_says_so(settings, capsys):
    """On the screen when it is seen, on the page, and in the summary; a run that ranks better says nothing."""
    falling, rising = iter((0.7, 0.69, 0.6, 0.5)), iter((0.5, 0.6, 0.7, 0.8))
    summary = pretrain(PretrainConfig(**settings, probe="its own"), lambda folder: {"map": next(falling)})
    assert summary["last_validation"]["loss"] < summary["first_validation"]["loss"]
    (text,) = summary["warnings"]
    assert "fell from 0.700 at step 0 to 0.500 at step 5" in text
    assert f"warning: {text}" in capsys.readouterr().out
    page = (Path(settings["output_dir"]) / "report.html").read_text()
    assert "fell from 0.700 at step 0" in page
    settings |= {"output_dir": settings["output_dir"] + "-rising"}
    assert pretrain(PretrainConfig(**settings, probe="its own"), lambda folder: {"map": next(rising)})["warnings"] == []


@pytest.mark.parametrize(("entry", "flags"), [(launch.preflight, []), (launch.pretrain, ["--dry_run"])])
def test_a_data_set_that_is_not_there_is_found_before_the_run(entry, flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command", "--probe", "wikiqa=absent", *flags])
    with pytest.raises(KinspanError, match=r"^--probe .*absent"):
        entry.main()
