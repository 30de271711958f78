"""Lines are whole or not there yet, and each step stands once."""

import errno
import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine.log import Log, WandbBoard
from tests.pretrain.steps import read_curve


def steps(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["split"]) for line in lines]


@pytest.fixture
def open_log(tmp_path):
    logs = []

    def start(first_step=0, **options):
        logs.append(Log(tmp_path, first_step, 100, **options))
        return logs[-1]

    yield start
    for log in logs:
        log.close()


def test_a_resumed_run_takes_later_lines_back(open_log, tmp_path):
    log = open_log()
    for step in (10, 20, 30):
        log.write(step, "train", {"loss": 1.0})
        log.write(step, "validation", {"loss": 1.0})
    open_log(20)
    assert steps(tmp_path) == [(10, "train"), (10, "validation"), (20, "train"), (20, "validation")]
    open_log(20, undone=("validation",))
    assert steps(tmp_path) == [(10, "train"), (10, "validation"), (20, "train")]


def test_damaged_lines_are_left_out(open_log, tmp_path):
    good = json.dumps({"step": 5, "split": "train"})
    (tmp_path / "metrics.jsonl").write_text(f'{good}\n{{"step": 6, "spl\n[1]\n{good[:9]}')
    open_log(10)
    assert steps(tmp_path) == [(5, "train")]


def test_a_full_disk_costs_no_line(open_log, tmp_path, monkeypatch):
    log = open_log()
    log.write(10, "train", {"loss": 1.0})

    @contextmanager
    def open_full(path, mode="r", **options):
        with whole(path, mode, **options) as file:
            yield SimpleNamespace(write=lambda text: file.write(text[:7]))
            raise OSError(errno.ENOSPC, "No space left on device")

    whole = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_full)
        log.write(20, "train", {"loss": 2.0})
    assert steps(tmp_path) == [(10, "train")]
    log.write(30, "train", {"loss": 3.0})
    assert steps(tmp_path) == [(10, "train"), (20, "train"), (30, "train")]


@pytest.fixture
def wandb(monkeypatch):
    """Stands in for the package; ``inits`` and ``rows`` are what it was given."""
    fake = SimpleNamespace(inits=[], rows=[], Settings=lambda **options: options)
    run = SimpleNamespace(define_metric=lambda *names, **options: None, finish=lambda: None, log=fake.rows.append)
    fake.init, fake.run = lambda **options: fake.inits.append(options) or run, run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_sees_one_run_for_all_starts(wandb, open_log, tmp_path):
    for first_step in (0, 10):
        log = open_log(first_step, board=WandbBoard(tmp_path, "mine", {"objective": "ssp"}))
        log.write(first_step + 10, "train", {"loss": 3.0})
        log.close()
    assert [init["id"] for init in wandb.inits] == 2 * [wandb.inits[0]["id"]]
    assert {init["resume"] for init in wandb.inits} == {"allow"}
    assert wandb.rows == [{"step": step, "train/loss": 3.0} for step in (10, 20)]


def test_wandb_that_cannot_be_used_is_refused(wandb, tmp_path, monkeypatch):
    wandb.init = Mock(side_effect=RuntimeError("api_key not configured"))
    for module in (wandb, None):  # None: it is not installed
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(KinspanError, match="--wandb mine"):
            WandbBoard(tmp_path, "mine", {})


def test_tensorboard_has_the_lines_of_the_log(open_log, tmp_path):
    """Also where its folder is gone, and without those that a resumed run took back."""
    log = open_log()
    for step in (10, 20, 30):
        log.write(step, "train", {"loss": step / 10})
    log.close()
    shutil.rmtree(tmp_path / "tensorboard")
    for first_step in (30, 20):
        log = open_log(first_step)
        log.write(first_step + 10, "train", {"loss": 9.0})
        log.close()
    assert read_curve(tmp_path, "loss/train") == [(10, 1), (20, 2), (30, 9)]
