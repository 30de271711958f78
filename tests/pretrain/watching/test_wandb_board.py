"""Weights & Biases sees one run for all starts, and each line once. The package itself is stood in for."""

import json
import sys
from types import SimpleNamespace

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.watching.wandb_board import import_wandb, open_board

FACTS = {"settings": {"objective": "ssp"}}


@pytest.fixture
def wandb(monkeypatch):
    """Stands in for the package; ``inits`` and ``rows`` are what it was given."""
    fake = SimpleNamespace(inits=[], rows=[], Settings=lambda **options: options)
    run = SimpleNamespace(define_metric=lambda *names, **options: None, finish=lambda: None, log=fake.rows.append)

    def init(**options):
        fake.inits.append(options)
        return run

    fake.init, fake.run = init, run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def write_lines(folder, *lines):
    text = "".join(json.dumps({"step": step, "split": split, "loss": loss}) + "\n" for step, split, loss in lines)
    (folder / "metrics.jsonl").write_text(text)


def test_a_restart_continues_the_run_and_repeats_no_line(wandb, tmp_path):
    board = open_board(tmp_path, "mine", FACTS)
    board.write(10, "train", {"loss": 3.0})
    board.write(20, "train", {"loss": 2.0})
    board.close()
    write_lines(tmp_path, (10, "train", 3.0), (20, "train", 2.0))
    board = open_board(tmp_path, "mine", FACTS)
    board.write(20, "train", {"loss": 2.0})  # repeated after the checkpoint of step 10
    board.write(20, "validation", {"loss": 2.5})  # the kill came before it
    board.write(30, "train", {"loss": 1.0})
    assert [init["id"] for init in wandb.inits] == 2 * [wandb.inits[0]["id"]]
    assert {init["resume"] for init in wandb.inits} == {"allow"}
    assert wandb.rows == [
        {"step": 10, "train/loss": 3.0},
        {"step": 20, "train/loss": 2.0},
        {"step": 20, "validation/loss": 2.5},
        {"step": 30, "train/loss": 1.0},
    ]


def test_a_flag_that_comes_later_sends_what_was_logged_before(wandb, tmp_path):
    write_lines(tmp_path, (10, "train", 3.0), (10, "validation", 3.5))
    open_board(tmp_path, "mine", FACTS)
    assert wandb.rows == [{"step": 10, "train/loss": 3.0}, {"step": 10, "validation/loss": 3.5}]
    open_board(tmp_path, "another", FACTS)
    assert len({init["id"] for init in wandb.inits}) == 2


def test_training_goes_on_where_it_fails(wandb, tmp_path, capsys):
    def fail(row):
        raise RuntimeError("the service is gone")

    board = open_board(tmp_path, "mine", FACTS)
    wandb.run.log, wandb.run.finish = fail, lambda: fail({})
    for step in (10, 20):
        board.write(step, "train", {"loss": 1.0})
    board.close()
    assert capsys.readouterr().out.count("the service is gone") == 1


def test_what_the_user_can_mend_is_one_line(wandb, tmp_path, monkeypatch):
    def refuse(**options):
        raise RuntimeError("api_key not configured")

    wandb.init = refuse
    with pytest.raises(KinspanError, match=r"--wandb mine: .*api_key not configured.*WANDB_MODE=offline"):
        open_board(tmp_path, "mine", FACTS)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(KinspanError, match=r"--wandb mine: the package wandb cannot be imported.*pip install wandb"):
        import_wandb("mine")
    monkeypatch.delitem(sys.modules, "wandb")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    if not hasattr(__import__("wandb"), "init"):  # unless the package is installed, whose folder comes later
        with pytest.raises(KinspanError, match="a folder of that name is in its place"):
            import_wandb("mine")
