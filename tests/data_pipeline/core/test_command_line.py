"""Flags above a YAML file, and --help, from declared settings."""

import re
from dataclasses import dataclass, fields

import pytest

from data_pipeline.core.command_line import parse, shorten
from data_pipeline.core.default_model import DEFAULT_HUB_NAME, DEFAULT_MODEL_NAME, default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, get_groups, setting
from finetune.evaluation.config import EvaluateConfig
from finetune.training.config import FinetuneConfig
from launch.prepare import PrepareConfig
from pretrain.config import PretrainConfig


@dataclass
class Config:
    BASIC = ("size", "names")
    POSITIONAL = "output_dir"

    size: int = setting(3, ABOVE_0)
    """100% of a size."""
    output_dir: str | None = setting(None)
    """A folder."""
    names: list[str] = setting(["x", "y"])
    """Names."""
    dry_run: bool = setting(False)
    """Only look."""
    mixed: list[str] = setting([])


def read(*argv, config_class=Config):
    return parse(config_class, "", argv=list(argv))


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig, PrepareConfig, Config])
def test_help_has_two_tiers(config_class, capsys):
    def show(*argv):
        with pytest.raises(SystemExit) as end:
            read(*argv, config_class=config_class)
        assert end.value.code == 0
        return capsys.readouterr().out

    flags = re.compile(r"^  --(\w+)", re.MULTILINE)
    assert sorted(flags.findall(show("--help"))) == sorted(["config", *config_class.BASIC])
    everything = show("--help", "all")
    assert sorted(flags.findall(everything)) == sorted(["config", *(f.name for f in fields(config_class))])
    groups = [name for name in dict.fromkeys(get_groups(config_class).values()) if name]
    assert re.findall(r"^(\w[\w ]+):$", everything, re.MULTILINE) == ["options", *groups]
    assert len(config_class.BASIC) <= 13


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        *[([], Config()), (["--names", "a", "--names=b"], Config(names=["a", "b"]))],
        *[(["--dry-run", "--size", "1e3"], Config(dry_run=True, size=1000)), (["--dry_run", "false"], Config())],
        (["there", "--size=4"], Config(output_dir="there", size=4)),
    ],
)
def test_flags(argv, config):
    assert read(*argv) == config


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        *[(["--size", "x"], "--size x"), (["--size", "0"], "--size 0"), (["--size"], "--size")],
        *[(["--dry_run", "maybe", "no"], "maybe"), (["--siz", "3"], "--siz; .*--size")],
        *[(["--od", "x"], "--od; .*--output_dir"), (["--output_dir", "s3://bucket/a"], "--output_dir")],
        *[(["--dry-rum=yes"], "--dry_rum; .*--dry_run"), (["--zzz", "x"], "--zzz")],
        *[(["--config", "absent.yaml"], "--config absent.yaml"), (["--output_dir", ""], "--output_dir: ")],
        *[(["there", "-k"], "-k: "), (["--output_dir", "a", "b"], "b: ")],
    ],
)
def test_what_is_no_value_or_no_flag_is_refused(argv, names):
    with pytest.raises(KinspanError, match=names):
        read(*argv)


@pytest.mark.parametrize(
    ("text", "argv", "config"),
    [
        ("size: 7\noutput_dir: a\nmixed: null\n", ["--size", "9"], Config(size=9, output_dir="a")),
        ("names: [a b, c]\nmixed: [x, y]\n", [], Config(names=["a b", "c"], mixed=["x", "y"])),
        ("names: [a]\n", ["--names", "b"], Config(names=["b"])),
        *[("<<: {size: 2, dry_run: true}\nsize: 3\n", [], Config(dry_run=True)), ("", [], Config())],
    ],
)
def test_flags_override_a_file(text, argv, config, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    assert read("--config", str(tmp_path / "c.yaml"), *argv) == config


@pytest.mark.parametrize(
    ("text", "names"),
    [
        *[("sizee: 3", "size"), ("size: many", "--size"), ("names: []", "--names"), ("- 1", ""), ("a: [", "")],
        *[("\x00", ""), ("size: 3\nnames: [a]\nsize: 4", "size"), ("mixed: [{path: a, path: b}]", "path")],
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text, names, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(KinspanError, match=f"--config .*c.yaml.*{names}"):
        read("--config", str(tmp_path / "c.yaml"))


def test_a_file_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("--config", "launch/recipes/quickstart.yaml", config_class=PretrainConfig).max_steps == 400


def test_the_installed_model_is_found_by_its_names(tmp_path, monkeypatch):
    for name in (DEFAULT_MODEL_NAME, DEFAULT_HUB_NAME):
        assert read("--data", "files=x", "--model", name, config_class=FinetuneConfig).model == default_model()
        assert read("--model", "a", name, config_class=EvaluateConfig).model == ["a", default_model()]
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT_MODEL_NAME).mkdir()
    assert read("--model", DEFAULT_MODEL_NAME, config_class=EvaluateConfig).model == [DEFAULT_MODEL_NAME]


def test_a_text_is_shortened_without_spaces_too():
    assert [shorten(text, 4) for text in ("字" * 9, " a\nb ", "four")] == ["字字字…", "a b", "four"]
