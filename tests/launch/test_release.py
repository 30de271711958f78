"""kinspan release as its users call it: refusals, dry runs, pushing, and the card's code where nothing of us is."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv

import pytest
from sentence_transformers import CrossEncoder

from data_pipeline.core.errors import KinspanError
from launch.commands import release as entry
from launch.kinspan import show
from pretrain.release.card import CANDIDATES, QUESTION
from pretrain.run import pretrain
from tests.pretrain.steps import make_run
from tests.synthetic import write_model


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tiny_corpus):
    """A run of four updates with two checkpoints, from a config alone."""
    folder = tmp_path_factory.mktemp("run") / "run"
    model = write_model(folder.with_name("small"))
    steps = {"max_steps": 4, "save_steps": 2, "log_steps": 1, "eval_steps": 2, "eval_pairs": 40}
    pretrain(make_run(tiny_corpus, model, folder, micro_batch_size=5, learning_rate=3e-3, **steps))
    return folder


@pytest.fixture
def call(monkeypatch, run_folder, tmp_path):
    """``call(*flags, source=run)``: runs the entry in this process; its release."""

    def run(*flags, source=run_folder, output=tmp_path / "release"):
        arguments = ["--run_dir", str(source), "--output_dir", str(output), *map(str, flags)]
        monkeypatch.setattr(sys, "argv", ["release.py", *arguments])
        show(entry.main())
        return output

    return run


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--push_to_hub", "ranker"], "--push_to_hub ranker"),
        *[(["--push_to_hub", "a/b/c"], "--push_to_hub a/b/c"), (["--push_to_hub", ""], "--push_to_hub")],
        *[(["--public"], "--public"), (["--run_dir", "checkpoints/step-00000003"], "--run_dir")],
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(call, tmp_path, flags, says):
    with pytest.raises(KinspanError, match=says):
        call(*flags)
    assert not list(tmp_path.iterdir())


def test_every_checkpoint_is_pushed_as_a_revision(call, hub, run_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "finetune.training.release", None)  # it needs kinspan[rank]
    for step in (2, 4):
        folder = call("--push_to_hub", "me/ranker", source=run_folder / f"checkpoints/step-{step:08d}")
    facts = {tag: json.loads(hub.files("me/ranker", tag)["kinspan.json"]) for tag in hub.repositories["me/ranker"].tags}
    assert {tag: fact["step"] for tag, fact in facts.items()} == {"step-00000002": 2, "step-00000004": 4}
    assert 'CrossEncoder("me/ranker", ' in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_cards_code_runs_where_nothing_of_this_project_is(call, tmp_path):
    """From within the release, in an environment that has this one's libraries but not its project."""
    folder = call()
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "kinspan" not in code
    venv.create(tmp_path / "fresh")
    python = tmp_path / "fresh/bin/python"
    (packages,) = tmp_path.glob("fresh/lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command, env = [python, "-c", code.replace("path/to/this/folder", ".")], clean | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ours = CrossEncoder(str(folder), max_length=48).predict([(QUESTION, text) for text in CANDIDATES])
    scores = [float(score) for score in re.findall(r"'score': [^\d]*([\d.]+)", done.stdout)]
    assert scores == pytest.approx(sorted(ours.tolist(), reverse=True), abs=1e-5)
    for package in ("kinspan", "pretrain"):
        absent = subprocess.run([python, "-c", f"import {package}"], cwd=tmp_path, env=clean, capture_output=True)
        assert absent.returncode == 1, package
