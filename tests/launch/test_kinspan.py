"""The console command: it lists every entry, and runs them under its own name."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_pipeline.core.errors import KinspanError
from launch import kinspan

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("prepare", "pretrain", "finetune", "preflight")  # that launchers start


def test_it_lists_every_entry(monkeypatch, capsys):
    files = [*(ROOT / "launch/commands").glob("*.py"), *(ROOT / f"launch/{name}.py" for name in SCRIPTS)]
    entries = {p.stem for p in files if not p.stem.startswith("_")}
    assert {module.rpartition(".")[2] for module, _ in kinspan.COMMANDS.values()} == entries
    for argv, commands in ((["kinspan"], kinspan.FIRST_DAY), (["kinspan", "--help"], kinspan.COMMANDS)):
        monkeypatch.setattr(sys, "argv", argv)
        kinspan.show(kinspan.run_command())
        shown = capsys.readouterr().out
        assert [name for name in kinspan.COMMANDS if f"\n  {name} " in shown] == list(commands)
    monkeypatch.setattr(sys, "argv", ["kinspan", "--version"])
    kinspan.show(kinspan.run_command())
    assert capsys.readouterr().out == f"kinspan {version('kinspan')}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *[(["nonesuch"], "adapt or index"), (["pretrian"], "pretrain"), (["fine-tune"], "finetune")],
        (["show", "--corpus", "x"], "show corpus or show pairs or show run"),
        (["show", "model"], "show corpus or show pairs or show run"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(typed, meant):
    with pytest.raises(KinspanError, match=rf"kinspan {typed[0]}: .*{meant}"):
        kinspan.find_command(typed)


@pytest.mark.parametrize(("typed", "module"), [("evaluate transfer", "transfer_matrix"), ("evaluate", "evaluate")])
def test_a_command_may_have_one_of_its_own_below(typed, module):
    command, rest = kinspan.find_command([*typed.split(), "--json"])
    assert kinspan.COMMANDS[command][0] == f"commands.{module}"
    assert rest == ["--json"]


def test_an_output_that_nobody_reads_any_more_is_no_success(monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as end:
        kinspan.run(Mock(side_effect=BrokenPipeError))
    assert end.value.code == 141  # as of any program that writes to such a pipe


def test_a_rank_that_is_no_number_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr("time.sleep", Mock())
    monkeypatch.setenv("RANK", "abc")
    with pytest.raises(SystemExit):
        kinspan.run(Mock())
    assert "RANK" in capsys.readouterr().err
