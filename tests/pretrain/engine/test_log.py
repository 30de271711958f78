"""Lines are whole or not there yet, and each step stands once."""

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.summary.writer import event_file_writer

from data_pipeline.core.errors import KinspanError
from pretrain.engine.log import Log, WandbBoard
from tests.pretrain.steps import read_curve


def steps(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["split"]) for line in lines]


@pytest.fixture
def open_log(tmp_path, monkeypatch):
    # TensorBoard numbers a process's files, and reads those of one second by their names: number 10 before number 9
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
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


def test_damaged_lines_are_left_out_and_told(open_log, tmp_path, caplog):
    good = json.dumps({"step": 5, "split": "train"})
    (tmp_path / "metrics.jsonl").write_text(f'{good}\n{{"step": 6, "spl\n[1]\n{good[:9]}')
    open_log(10)
    assert steps(tmp_path) == [(5, "train")]
    assert "2 damaged line(s) left out" in caplog.text


def test_a_full_disk_costs_no_line(open_log, tmp_path, monkeypatch, caplog):
    log = open_log()
    log.write(10, "train", {"loss": 1.0})

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

    whole = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode="r", **k: Full(whole(path, mode, **k)))
        log.write(20, "train", {"loss": 2.0})
    assert steps(tmp_path) == [(10, "train")]
    assert "No space left on device" in caplog.text
    log.write(30, "train", {"loss": 3.0})
    assert steps(tmp_path) == [(10, "train"), (20, "train"), (30, "train")]


def test_a_full_disk_for_tensorboard_alone_repeats_no_line(open_log, tmp_path, monkeypatch):
    log = open_log()
    with monkeypatch.context() as patch:

        def full(log, *line):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(Log, "_write_tensorboard", full)
        log.write(10, "train", {"loss": 1.0})
        log.write(20, "train", {"loss": 1.0})
    log.write(30, "train", {"loss": 1.0})
    assert steps(tmp_path) == [(10, "train"), (20, "train"), (30, "train")]
    assert list((tmp_path / "tensorboard").iterdir())


def test_what_could_not_be_written_is_tried_again_at_the_end(open_log, tmp_path, monkeypatch):
    log = open_log()
    with monkeypatch.context() as patch:

        def full(log):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(Log, "_write_lines", full)
        log.write(10, "train", {"loss": 1.0})
    log.close()
    assert steps(tmp_path) == [(10, "train")]


def test_a_line_of_training_says_how_long_the_rest_takes(open_log, monkeypatch, caplog):
    caplog.set_level("INFO")
    now = [1000.0]
    monkeypatch.setattr("pretrain.engine.log.time.monotonic", lambda: now[0])
    log = open_log(20)
    now[0] += 100
    log.write(30, "train", {"loss": 1.0})
    log.write(30, "validation", {"loss": 1.0})
    assert "0.1 steps/s  12 min left" in caplog.messages[0]
    assert "left" not in caplog.messages[1]


def test_tensorboard_groups_related_curves_and_shows_the_settings(open_log, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    names = ("loss", "pair_loss", "pair_auc", "mlm_accuracy", "sp/pair_loss", "tokens", "tokens_per_second")
    log = open_log(settings={"seed": 1, "max_epochs": None, "objective": "ssp"})
    log.write(10, "train", dict.fromkeys(names, 1.0))
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert sorted(board.Tags()["scalars"]) == [
        "1 loss/loss/train",
        "1 loss/pair_loss/train",
        "2 quality/pair_auc/train",
        "3 tokens/mlm_accuracy/train",
        "4 by part/sp/pair_loss/train",
        "5 course/tokens/train",
        "6 speed/tokens_per_second/train",
    ]
    assert "_hparams_/session_start_info" in board.summary_metadata


def test_tensorboard_shows_one_curve_over_kills(open_log, tmp_path):
    """Steps that are repeated stand once, with the value that holds, and in order."""
    for first_step, last_step, value in ((0, 40, 1.0), (20, 60, 2.0), (30, 50, 3.0)):
        log = open_log(first_step)  # the one before was never closed: killed
        for step in range(first_step + 10, last_step + 1, 10):
            log.write(step, "train", {"loss": value})
            log.write(step, "validation", {"loss": value})
    expected = [(10, 1.0), (20, 1.0), (30, 2.0), (40, 3.0), (50, 3.0)]
    assert read_curve(tmp_path, "1 loss/loss/train") == expected
    assert read_curve(tmp_path, "1 loss/loss/validation") == expected


def test_tensorboard_shows_once_what_a_stopped_run_measures_later(open_log, tmp_path):
    log = open_log()
    log.write(10, "train", {"loss": 1.0})
    log.write(20, "train", {"loss": 1.0})
    log.close()
    log = open_log(20, undone=("validation",))
    log.write(20, "validation", {"loss": 2.0})
    log.write(30, "train", {"loss": 2.0})
    assert read_curve(tmp_path, "1 loss/loss/train") == [(10, 1.0), (20, 1.0), (30, 2.0)]
    assert read_curve(tmp_path, "1 loss/loss/validation") == [(20, 2.0)]


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


def test_training_goes_on_where_wandb_fails(wandb, tmp_path, caplog):
    def fail(row):
        raise RuntimeError("the service is gone")

    board = WandbBoard(tmp_path, "mine", {})
    wandb.run.log, wandb.run.finish = fail, lambda: fail({})
    board.write(10, "train", {"loss": 1.0})
    board.close()
    assert caplog.text.count("the service is gone") == 2


def test_wandb_that_cannot_be_used_is_refused(wandb, tmp_path, monkeypatch):
    def refuse(**options):
        raise RuntimeError("api_key not configured")

    wandb.init = refuse
    for module in (wandb, None):  # None: it is not installed
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(KinspanError, match="--wandb mine"):
            WandbBoard(tmp_path, "mine", {})
