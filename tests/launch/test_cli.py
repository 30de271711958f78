"""Flags from declared settings: each once in --help, former names still accepted, lists and files."""

import os
import re
import sys
from dataclasses import dataclass, fields

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, GROUPS, setting
from finetune.evaluation.config import EvaluateConfig
from finetune.training.config import FinetuneConfig
from launch._cli import make_parser, parse, run
from launch.commands.inspect_corpus import InspectCorpusConfig
from launch.commands.release import ReleaseConfig
from launch.prepare import PrepareConfig
from pretrain.config import PretrainConfig
from pretrain.modeling.default_model import DEFAULT_HUB_NAME, DEFAULT_MODEL_NAME, default_model


@dataclass
class Config:
    size: int = setting(3, "100% of a size.", within=ABOVE_0)
    output_dir: str | None = setting(None, "A folder.", old_name="output")
    names: list[str] = setting(["x", "y"], "Names.")
    dry_run: bool = setting(False, "Only look.")


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig, PrepareConfig, Config])
def test_help_shows_each_flag_once_and_names_no_other(config_class):
    shown = re.findall(r"^  --(\w+)", make_parser(config_class, "", "").format_help(), re.MULTILINE)
    assert sorted(shown) == sorted(["config", *(f.name for f in fields(config_class))])


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig])
def test_help_has_the_groups_in_order(config_class):
    text = make_parser(config_class, "", "").format_help()
    found = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert found == ["options", *GROUPS]


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig, PrepareConfig])
def test_help_shows_the_basic_settings_and_takes_all(config_class, capsys):
    def show(*argv):
        with pytest.raises(SystemExit):
            parse(config_class, "", argv=list(argv))
        return re.findall(r"^  --(\w+)", capsys.readouterr().out, re.MULTILINE)

    every = {f.name for f in fields(config_class)}
    assert set(show("--help")) == {"config", *config_class.BASIC}
    assert set(show("--help", "all")) == {"config", *every}
    assert len(config_class.BASIC) <= 13


def test_help_says_default_and_range(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = make_parser(Config, "", "").format_help()
    assert "100% of a size. (default: 3; must be above 0)" in text
    assert "Names. (default: x y)" in text
    assert "--dry_run [true|false]" in text
    assert "A folder.\n" in text


def test_a_former_name_is_accepted_and_says_the_new_one(capsys):
    for argv in (["--output", "there"], ["--output=there"]):
        assert parse(Config, "", argv=argv).output_dir == "there"
        assert capsys.readouterr().err == "--output is now called --output_dir; please use the new name\n"
    assert parse(ReleaseConfig, "", argv=["--run", "a", "--output_dir", "b"]).run_dir == "a"


def test_a_former_name_in_a_file(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("output: there\n")
    config = ["--config", str(tmp_path / "c.yaml")]
    assert parse(Config, "", argv=config).output_dir == "there"
    assert capsys.readouterr().err.count("--output_dir") == 1
    assert parse(Config, "", argv=[*config, "--output_dir", "here"]).output_dir == "here"


def test_one_rank_alone_says_a_new_name(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert parse(Config, "", argv=["--output", "there"]).output_dir == "there"
    assert capsys.readouterr().err == ""


def test_values_and_defaults():
    assert parse(Config, "", argv=[]) == Config()
    assert parse(Config, "", argv=["--names", "a", "--names=b"]).names == ["a", "b"]
    assert parse(Config, "", argv=["--dry-run"]).dry_run
    assert parse(Config, "", argv=["--dry_run", "false"]) == Config()


def test_the_installed_model_is_found_by_its_names(tmp_path, monkeypatch):
    for name in (DEFAULT_MODEL_NAME, DEFAULT_HUB_NAME):
        assert parse(FinetuneConfig, "", argv=["--data", "files=x", "--model", name]).model == default_model()
        assert parse(EvaluateConfig, "", argv=["--model", "a", name]).model == ["a", default_model()]
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT_MODEL_NAME).mkdir()
    assert parse(EvaluateConfig, "", argv=["--model", DEFAULT_MODEL_NAME]).model == [DEFAULT_MODEL_NAME]


def test_a_number_out_of_range_is_refused_by_any_entry():
    with pytest.raises(KinspanError, match=r"^--size 0: must be above 0$"):
        parse(Config, "", argv=["--size", "0"])


@pytest.mark.parametrize("argv", [["--size", "x"], ["--dry_run", "maybe"], ["--siz", "3"], ["stray"]])
def test_what_is_no_value_or_no_flag_ends_with_a_line(argv, capsys):
    with pytest.raises(SystemExit) as end:
        parse(Config, "", argv=argv)
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]


def test_a_recipe_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(PretrainConfig, "", argv=["--config", "launch/recipes/quickstart.yaml"]).max_steps == 400


def test_a_file_may_say_that_a_list_is_empty(tmp_path):
    (tmp_path / "config.yaml").write_text("data: files=x\nseed: []\nnegative_labels: 2\n")
    arguments = ["--config", str(tmp_path / "config.yaml"), "--data", "files=x"]
    found = parse(FinetuneConfig, "", argv=arguments)
    assert (found.seed, found.negative_labels) == ([], [2])


@pytest.mark.parametrize("text", ["size: 2\ndry_run: true\nsize: 3\n", "names:\n  - {a: 1, a: 2}\n"])
def test_a_file_that_repeats_a_key_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(KinspanError, match=r"config.yaml cannot be read: line [32]: (size|a) is set twice$"):
        parse(Config, "", argv=["--config", str(tmp_path / "config.yaml")])


def test_a_file_may_override_what_it_merges(tmp_path):
    (tmp_path / "config.yaml").write_text("<<: {size: 2, dry_run: true}\nsize: 3\n")
    assert parse(Config, "", argv=["--config", str(tmp_path / "config.yaml")]) == Config(size=3, dry_run=True)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--ouput_dir", "there is no flag --ouput_dir; did you mean --output_dir?"),
        ("--dry-rum=yes", "there is no flag --dry_rum; did you mean --dry_run?"),
        ("--zzz", "there is no flag --zzz; see --help"),
    ],
)
def test_a_flag_that_is_nearly_one_is_suggested(typed, says, capsys):
    with pytest.raises(SystemExit):
        parse(Config, "", argv=[typed, "x"])
    assert says in capsys.readouterr().err


def test_a_command_looks_for_its_models_before_it_begins(monkeypatch, tmp_path):
    """Parsed elsewhere, a recipe may name a model that is not here."""
    flags = ["--model", "no/such", "--data", f"files={tmp_path}"]
    assert parse(EvaluateConfig, "", argv=flags).model == ["no/such"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *flags])
    with pytest.raises(KinspanError, match=r"no model at no/such: .* all-MiniLM-L6-v2, which is installed"):
        parse(EvaluateConfig, "")


def test_a_plan_needs_no_model_of_the_hub(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrain", "--dry_run", "--model", "roberta-base"])
    assert parse(PretrainConfig, "").model == "roberta-base"


def test_an_output_that_nobody_reads_any_more_is_no_success(monkeypatch):
    def write():
        raise BrokenPipeError

    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as end:
        run(write)
    assert end.value.code == 141  # as of any program that writes to such a pipe


def test_a_corpus_to_show_may_stand_without_its_flag():
    assert parse(InspectCorpusConfig, "", argv=["corpora/docs", "--sample", "3"]).corpus == "corpora/docs"
