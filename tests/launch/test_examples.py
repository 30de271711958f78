"""The commands that epilogs, README.md, docs/ and the heads of recipes show: each is one that the entry takes."""

import importlib
import re
import shlex
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from data_pipeline.core.command_line import parse
from data_pipeline.core.files import find_file
from finetune.study import read_study
from launch import kinspan
from tests.launch.entries import MODULES, module_of, name_module

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = sorted((ROOT / "launch/recipes").glob("*.yaml"))
OURS = ("launch/", "ds_configs/", "benchmarks/")


def commands_in(text):
    """The command lines that start an entry, with continued lines joined, as (entry, arguments)."""
    found = []
    for line in re.sub(r"\\\n\s*(#\s*)?", " ", text).splitlines():
        if not re.match(r"\s*(#\s*)?((python|deepspeed|torchrun|srun)\b.*launch[/.]|kinspan \w)", line) or "$" in line:
            continue
        words = shlex.split(re.split(r" (?:>|&&) ", line.strip().lstrip("# "))[0], comments=True)
        place = next(n for n, word in enumerate(words) if word == "kinspan" or re.match(r"launch[/.]\w+", word))
        if words[place] in ("kinspan", "launch.kinspan"):
            command, rest = kinspan.find_command(words[place + 1 :])
            found.append((name_module(command), rest))
        else:
            found.append((re.sub(r"launch[/.](\w+?)(\.py)?$", r"\1", words[place]), words[place + 1 :]))
    return [(entry, arguments) for entry, arguments in found if "--help" not in arguments and "..." not in arguments]


def check_example(entry, arguments):
    """Raises where the entry would refuse the arguments, or where they name a file of this repository that is not."""
    module = module_of(entry)
    (config_class,) = (c for n, c in vars(module).items() if n.endswith("Config") and is_dataclass(c))
    if "--config" in arguments and not (at := arguments[arguments.index("--config") + 1]).startswith(OURS):
        arguments = [argument for argument in arguments if argument not in ("--config", at)]  # the reader's own file
    config = parse(config_class, "", argv=arguments)
    for argument in arguments:
        if argument.startswith(OURS):
            assert find_file(argument) or (ROOT / argument).is_dir(), argument
    if entry == "pretrain":
        importlib.import_module("pretrain.planning.checks").check(config)
    elif hasattr(module, "check"):
        module.check(config)
    if entry == "study" and find_file(config.study):
        read_study(find_file(config.study))


@pytest.mark.parametrize("entry", sorted(MODULES.keys() - {"kinspan"}))
def test_the_examples_of_help_are_taken(entry):
    examples = commands_in(module_of(entry).EPILOG)
    assert entry in {name for name, _ in examples}
    for name, arguments in examples:
        check_example(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_taken(page):
    for entry, arguments in commands_in(page.read_text(encoding="utf-8")):
        check_example(entry, arguments)


def test_the_commands_of_recipes_are_taken():
    commands = [command for recipe in RECIPES for command in commands_in(recipe.read_text(encoding="utf-8"))]
    assert len(commands) > 10
    for entry, arguments in commands:
        check_example(entry, arguments)
