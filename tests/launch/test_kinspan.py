"""The console command: it lists every entry, and runs them under its own name."""

import importlib
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from data_pipeline.errors import KinspanError
from launch import kinspan

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_it_lists_every_entry(monkeypatch, capsys):
    entries = {p.stem for p in (ROOT / "launch").glob("*.py") if not p.stem.startswith("_")} - {"kinspan"}
    assert set(kinspan.COMMANDS) == entries
    monkeypatch.setattr(sys, "argv", ["kinspan"])
    kinspan.run_command()
    said = capsys.readouterr().out
    assert all(f"\n  {entry} " in said for entry in entries)


def test_help_of_a_command_has_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kinspan", "inspect-pairs", "--help"])
    with pytest.raises(SystemExit) as end:
        kinspan.run_command()
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: kinspan inspect_pairs ")


def test_another_command_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kinspan", "nonesuch"])
    with pytest.raises(KinspanError, match="nonesuch: there is no such command; choose one of prepare, "):
        kinspan.run_command()


@pytest.mark.parametrize(
    ("typed", "meant"), [("pretrian", "pretrain"), ("fine-tune", "finetune"), ("evalute", "evaluate")]
)
def test_a_command_that_is_nearly_one_is_suggested(typed, meant, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kinspan", typed])
    with pytest.raises(KinspanError, match=rf"kinspan {typed}: there is no such command; did you mean {meant}\b"):
        kinspan.run_command()


def test_the_installed_script_calls_it():
    module, _, function = PROJECT["project"]["scripts"]["kinspan"].partition(":")
    assert getattr(importlib.import_module(module), function) is kinspan.main


def test_every_file_of_the_packages_is_installed():
    """Recipes, DeepSpeed's settings, templates: what is no module must be in package-data."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    packages = {include.rstrip("*") for include in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    data = PROJECT["tool"]["setuptools"]["package-data"]
    patterns = [f"{package.replace('.', '/')}/{glob}" for package, globs in data.items() for glob in globs]
    for name in tracked:
        if name.split("/")[0] in packages and not name.endswith(".py") and (ROOT / name).exists():
            assert any(fnmatch(name, pattern) for pattern in patterns), name
