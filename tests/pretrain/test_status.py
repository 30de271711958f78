"""The state of a run, by the files that it leaves."""

import contextlib
import json
import random
import sys

import pytest

from data_pipeline.core.errors import KinspanError
from launch.commands.status import main
from pretrain.engine.run_folder import lock_folder
from pretrain.status import format_status, read_status
from tests.launch.mutations import damaged


@pytest.fixture
def folder(tmp_path):
    """Of a run of 100 steps that has trained 20, with a checkpoint of step 10."""
    settings = {"objective": "ssp", "global_batch_size": 8, "pair_weight": 1.0}
    facts = {"total_steps": 100, "eval_pairs": 500, "model": {"name": "MiniLM"}, "settings": settings}
    facts["objectives"] = [{"name": "ssp"}, {"name": "docs:psd"}]
    (tmp_path / "run.json").write_text(json.dumps(facts))
    lines = [{"step": step, "split": "train", "loss": 1.0, "tokens": 10 * step} for step in (10, 20)]
    lines[1] |= {"tokens_per_second": 5.0, "skipped_steps": 1}
    lines.append({"step": 20, "split": "validation", "loss": 2.0, "pair_auc": 0.75})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "checkpoints/step-00000010").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000010/manifest.json").write_text("{}")
    return tmp_path


def show(folder, monkeypatch, *flags):
    """The exit status, and the results."""
    monkeypatch.setattr(sys, "argv", ["status", str(folder), *flags])
    results = main()
    text = next(results)
    with pytest.raises(SystemExit) as ended:
        next(results)
    return ended.value.code, text


def test_a_run_is_on_while_its_lock_is_held_and_complete_with_its_summary(folder, monkeypatch):
    assert show(folder, monkeypatch)[0] == 75
    with lock_folder(folder):
        status, text = show(folder, monkeypatch)
        assert status == 3
        assert "step 20 of 100 (20%)" in text
        assert read_status(folder)["seconds_left"] == 160.0
    (folder / "summary.json").write_text("{}")
    assert show(folder, monkeypatch)[0] == 0


def test_a_loss_that_rose_and_an_auc_of_a_guess_are_warned_of(folder):
    assert read_status(folder)["warnings"] == []
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "split": "validation", "loss": 9.0, "pair_auc": 0.52, "share_positive": 0.2}\n')
    loss, auc = read_status(folder)["warnings"]
    assert "9" in loss
    assert "0.520" in auc
    assert loss in format_status(read_status(folder))


def test_held_out_pairs_too_few_for_an_auc_are_no_damage(folder):
    """Such as the four of a tiny corpus; a bi-encoder never has one."""
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"eval_pairs": 4}))
    (folder / "metrics.jsonl").write_text('{"step": 20, "split": "validation", "loss": 2.0, "pair_mrr": 1.0}\n')
    assert read_status(folder)["warnings"] == []


def test_figures_as_json(folder, monkeypatch):
    _, text = show(folder, monkeypatch, "--json")
    values = json.loads(text)
    assert (values["step"], values["tokens"], values["seconds_left"]) == (10, 200, 180.0)  # it goes on from there
    assert (values["checkpoint"], values["skipped_steps"], values["title"]) == (10, 1, "MiniLM, ssp, docs:psd")
    assert values["validation"] == {"loss": 2.0, "pair_auc": 0.75}


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_damaged_files_are_read_as_far_as_they_go_or_refused(name, folder):
    content, rng = (folder / name).read_bytes(), random.Random(1)
    for _ in range(200):
        (folder / name).write_bytes(damaged(rng, content))
        with contextlib.suppress(KinspanError):
            format_status(read_status(folder))
