"""Flags of the command line from a dataclass of settings: each shown once in ``--help``, under its group."""

import argparse
import os
import sys
from dataclasses import Field, fields
from typing import Any, Literal, get_args, get_origin

from data_pipeline.errors import KinspanError
from pretrain.runtime.settings import GROUPS, REQUIRED, default_of, kinds_of

YES, NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
METAVARS = {int: "N", float: "X", str: "TEXT"}


def make_parser(config_class: type, description: str, epilog: str) -> argparse.ArgumentParser:
    """The parser of the class's settings and of ``--config``. What is not given stays out of the parsed values."""
    declared = fields(config_class)
    needed = [f"--{setting.name} ..." for setting in declared if default_of(setting) is REQUIRED]
    parser = argparse.ArgumentParser(
        usage=" ".join(["%(prog)s", *needed, "[--config FILE] [--SETTING VALUE ...]"]),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these settings; flags override it.")
    groups = {name: parser.add_argument_group(name) for name in GROUPS if _any_of(declared, name)}
    for setting, (kind, is_list, _) in zip(declared, kinds_of(config_class).values(), strict=True):
        options = _options_of_kind(kind) | ({"nargs": "+", "action": "extend"} if is_list else {})
        group = groups.get(setting.metadata["group"], parser)
        required = default_of(setting) is REQUIRED
        group.add_argument(f"--{setting.name}", help=_help_of(setting), required=required, **options)
    return parser


def _any_of(declared: tuple[Field, ...], group: str) -> bool:
    return any(setting.metadata["group"] == group for setting in declared)


def _options_of_kind(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if kind is bool:
        return {"type": _parse_bool, "nargs": "?", "const": True, "metavar": "true|false"}
    return {"type": kind, "metavar": METAVARS[kind]}


def _parse_bool(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return text.lower() in YES


def _help_of(setting: Field) -> str:
    """The setting's text, with its default and range in brackets."""
    default, within = default_of(setting), setting.metadata["within"]
    notes = []
    if default is not REQUIRED and default not in (None, "", []):
        shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        notes.append(f"default: {shown.lower() if isinstance(default, bool) else shown}")
    if within:
        notes.append(within.rule)
    text = setting.metadata["help"] + (f" ({'; '.join(notes)})" if notes else "")
    return text.replace("%", "%%")


def new_name_of(config_class: type, name: str) -> str:
    """The setting that ``name`` means: itself, or, said on stderr, the one whose former name it is."""
    for setting in fields(config_class):
        if setting.metadata["old_name"] == name:
            if not int(os.environ.get("RANK", "0")):
                print(f"--{name} is now called --{setting.name}; please use the new name", file=sys.stderr, flush=True)
            return setting.name
    return name


def as_named_now(config_class: type, argv: list[str]) -> list[str]:
    """The arguments with dashes in flags as underscores, and flags of former names under their new ones."""
    out = []
    for argument in argv:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and len(flag) > 2:
            flag = "--" + new_name_of(config_class, flag[2:].replace("-", "_"))
        out.append(flag + equals + value)
    return out


def check_text(name: str, value: Any) -> None:
    """Refuses what no file can be named by, and stand-ins for bytes that are not UTF-8, which no log can hold."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            raise KinspanError(
                f"--{name} {text!r}: holds a character that is not UTF-8; type it again, or rename the file"
            )
