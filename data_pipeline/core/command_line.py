"""Parses the command line for a dataclass of settings: flags, the YAML file of ``--config``, and ``--help``.

A command's dataclass may have two class attributes: ``BASIC``, the settings that ``--help`` without ``all`` shows, and
``POSITIONAL``, the setting that takes words without a flag.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a hub that cannot be reached is one line of ours, not ten

from data_pipeline.core.errors import KinspanError, prefix_errors
from data_pipeline.core.files import find_file, read_yaml
from data_pipeline.core.settings import (
    NO,
    REQUIRED,
    YES,
    Config,
    Settings,
    check_settings,
    convert_setting,
    expect_models,
    get_default,
    get_groups,
    get_value_types,
    make_config,
    read_help_texts,
    suggest,
)

METAVARS = {int: "N", float: "X", str: "TEXT", bool: "true|false"}


def parse(config_class: type[Config], description: str, epilog: str = "", argv: list[str] | None = None) -> Config:
    """Returns the settings of ``--config FILE.yaml`` and, above it, of the flags in ``argv`` or else of the process."""
    arguments = [*_normalise(config_class, sys.argv[1:] if argv is None else argv)]
    parser = make_parser(config_class, description, epilog, everything="--help all" in " ".join(arguments))
    parsed, words = parser.parse_known_args(arguments)
    flags = vars(parsed)
    if words:
        positional = getattr(config_class, "POSITIONAL", None)
        is_list = positional and get_value_types(config_class)[positional].is_list
        stray = next((word for word in words if word.startswith("-")), words[0])
        if not positional or stray.startswith("-") or (not is_list and (words[1:] or positional in flags)):
            raise KinspanError(f"{stray}: belongs to no flag; see --help")
        flags[positional] = [*flags.get(positional, []), *words] if is_list else words[0]
    values: dict[str, object] = {}
    for name in flags.pop("config", []):
        values |= _read_file(config_class, name)
    values |= flags
    for declared in fields(config_class):
        if get_default(declared) is REQUIRED and declared.name not in values:
            raise KinspanError(f"--{declared.name} is missing; see --help")
    config = make_config(config_class, values)
    if "://" in str(output := getattr(config, "output_dir", "")):
        raise KinspanError(f"--output_dir {output}: must be a folder of this machine, not a URL")
    check_settings(config)
    if argv is None:  # else nothing is run
        expect_models(config)
    return config


def _normalise(config_class: type[Settings], argv: list[str]) -> Iterator[str]:
    """Yields the arguments with underscores in flags, and ``=true`` after a switch without a value."""
    kinds = get_value_types(config_class)
    for argument, following in pairwise([*argv, ""]):
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or flag == "--":
            yield argument
            continue
        name = flag[2:].replace("-", "_")
        if name not in kinds and name not in ("config", "help"):
            raise KinspanError(f"there is no flag --{name}; {suggest(config_class, name, '--')}")
        if name in kinds and kinds[name].type is bool and not equals and following.lower() not in YES + NO:
            equals, value = "=", "true"
        yield f"--{name}{equals}{value}"


def _read_file(config_class: type[Settings], name: str) -> dict[str, object]:
    """Reads the settings of a YAML file."""
    content = read_yaml(find_file(name) or Path(name), f"--config {name}") or {}
    if not isinstance(content, dict):
        raise KinspanError(f"--config {name} must be lines of `setting: value`")
    with prefix_errors(f"--config {name}"):
        return {key: convert_setting(config_class, key, value) for key, value in content.items() if value is not None}


class _Parser(argparse.ArgumentParser):
    examples = ""

    def format_help(self) -> str:
        return f"{self.examples}\n\n{super().format_help()}".lstrip()

    def error(self, message: str) -> NoReturn:
        raise KinspanError(f"{message}; see --help")


def make_parser(
    config_class: type[Settings], description: str, epilog: str, everything: bool = True
) -> argparse.ArgumentParser:
    """Returns a parser of a class's settings and ``--config``. Values stay strings; flags not given are absent.

    epilog:     begins with examples, up to an empty line, which ``--help`` shows first
    everything: ``--help`` shows all settings in their groups, not only the basic ones
    """
    declared, texts, groups = fields(config_class), read_help_texts(config_class), get_groups(config_class)
    basic = () if everything else getattr(config_class, "BASIC", ())
    examples, _, notes = epilog.partition("\n\n")
    needed = [f"--{setting.name} ..." for setting in declared if get_default(setting) is REQUIRED]
    parser = _Parser(
        usage=" ".join(["%(prog)s", *needed, "[--config FILE] [--SETTING VALUE ...]"]),
        description=description,
        epilog=f"All {len(declared)} settings: --help all\n\n{notes}" if basic else notes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.examples = examples
    text = "YAML file with any of these settings; flags override it."
    parser.add_argument("--config", metavar="FILE", action="append", help=text)
    names = [name for name in dict.fromkeys(groups.values()) if name and not basic]
    sections = {name: parser.add_argument_group(name) for name in names}
    for setting in declared:
        kind, is_list, _ = get_value_types(config_class)[setting.name]
        metavar = f"{{{','.join(get_args(kind))}}}" if get_origin(kind) is Literal else METAVARS[kind]
        several: dict[str, Any] = {"nargs": "+", "action": "extend"} if is_list else {}
        shown = argparse.SUPPRESS if basic and setting.name not in basic else _format_help(setting, texts[setting.name])
        section = sections.get(groups[setting.name], parser)
        section.add_argument(f"--{setting.name}", metavar=metavar, help=shown, **several)
    return parser


def _format_help(setting: Field, text: str) -> str:
    """Returns the text with default and range in brackets."""
    default, within = get_default(setting), setting.metadata["within"]
    notes = []
    if default is not REQUIRED and default not in (None, "", []):
        shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        notes.append(f"default: {shown.lower() if isinstance(default, bool) else shown}")
    if within:
        notes.append(within.rule)
    return (text + (f" ({'; '.join(notes)})" if notes else "")).replace("%", "%%")


def shorten(text: str, limit: int) -> str:
    """Returns the beginning of a text in one line, of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
