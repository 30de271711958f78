"""What the entries share: settings from flags, which ``--help`` shows each once and under its group, and from a YAML
file below them; and errors as one line."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a hub that cannot be reached is one line of ours, not ten

from data_pipeline.core.errors import FILE_SYSTEM_ERRORS, KinspanError
from data_pipeline.core.files import find_file, read_yaml
from data_pipeline.core.hub import expect_model
from data_pipeline.core.logs import set_up_logging
from data_pipeline.core.settings import GROUPS, REQUIRED, check_ranges, default_of, kinds_of, may_be_empty
from pretrain.engine.world import adopt_world, read_world
from pretrain.modeling.default_model import list_models, resolve_models

YES, NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
METAVARS = {int: "N", float: "X", str: "TEXT"}

Config = TypeVar("Config")


def parse(config_class: type[Config], description: str, epilog: str = "", argv: list[str] | None = None) -> Config:
    """The settings from ``--config FILE.yaml`` (if given) and the flags, which override it.

    A line of the file becomes the flag of its name, so that both are checked alike, unless that flag is given too: of
    a flag that adds to a list, both would count. The first argument may stand without a flag where the class says
    which it is: ``FIRST``; and all that follow no flag are values of the list ``REST``. Where it names its ``BASIC``
    settings, ``--help`` shows them alone, and ``--help all`` every one. A command that is used in several ways has its
    own ``USAGES`` and ``GROUPS``.

    argv: the arguments; without it, those of the process, and then the models that they name must be there

    Raises KinspanError for a number that is out of its setting's range, and for a model that is not there.
    """
    is_command = argv is None
    argv = as_named_now(config_class, sys.argv[1:] if argv is None else argv)
    if (first := getattr(config_class, "FIRST", None)) and argv and not argv[0].startswith("-"):
        argv = [f"--{first}", *argv]
    given = {argument[2:].split("=", 1)[0] for argument in argv if argument.startswith("--")}
    from_file: list[str] = []
    for number, argument in enumerate(argv):
        if argument == "--config" and number + 1 < len(argv):
            from_file += _read_as_flags(argv[number + 1], config_class, given)
        elif argument.startswith("--config="):
            from_file += _read_as_flags(argument.split("=", 1)[1], config_class, given)
    parser = make_parser(config_class, description, epilog, everything="--help all" in " ".join(argv))
    if unknown := sorted(given - {"", "config", "help", *(field.name for field in fields(config_class))}):  # type: ignore[arg-type]
        parser.error(f"there is no flag --{unknown[0]}; {_suggest(config_class, unknown[0], '--')}")
    parsed, others = parser.parse_known_args(from_file + argv)
    values, rest = vars(parsed), getattr(config_class, "REST", None)
    if wrong := [argument for argument in others if not rest or argument.startswith("--")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if rest and others:
        values[rest] = [*values.get(rest, []), *others]
    values.pop("config", None)
    for name, value in values.items():
        check_text(name, value)
    config = config_class(**resolve_models(config_class, values))
    check_ranges(config)
    is_plan = getattr(config, "dry_run", False)  # which knows some models of the hub without it
    if is_command and not is_plan and read_world(os.environ).size == 1:  # several ranks would each ask the hub
        for model in list_models(config):
            expect_model(model)
    return config


def _suggest(config_class: type, name: str, prefix: str = "") -> str:
    near = get_close_matches(name, [field.name for field in fields(config_class)], n=2)
    return f"did you mean {' or '.join(prefix + one for one in near)}?" if near else "see --help"


def _read_as_flags(name: str, config_class: type, given: set[str]) -> list[str]:
    """The file's settings as flags, without those ``given`` on the command line."""
    settings = read_yaml(find_file(name) or Path(name), f"--config {name}")
    if settings is None:
        return []
    if not isinstance(settings, dict):
        raise KinspanError(f"--config {name} must be lines of `setting: value`")
    as_text = {field.name: field.metadata["as_text"] for field in fields(config_class)}  # type: ignore[arg-type]
    flags: list[str] = []
    for key, value in _open_sections(settings).items():
        key = new_name_of(config_class, key)
        if key not in as_text:
            raise KinspanError(f"--config {name}: there is no setting {key!r}; {_suggest(config_class, key)}")
        if value is None or key in given or (value == [] and may_be_empty(config_class, key)):
            continue
        if write := as_text[key]:
            value = [write(one) for one in (value if isinstance(value, list) else [value])]
            value = value[0] if len(value) == 1 else value
        flags += [f"--{key}", *map(str, value)] if isinstance(value, list) else [f"--{key}={value}"]
    return flags


def _open_sections(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file that may group them by section, as ``--help`` does."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= value if key in GROUPS and isinstance(value, dict) else {key: value}
    return flat


def make_parser(config_class: type, description: str, epilog: str, everything: bool = True) -> argparse.ArgumentParser:
    """The parser of the class's settings and of ``--config``. What is not given stays out of the parsed values.

    everything: the help shows all settings in their groups, and not the basic ones alone
    """
    declared = fields(config_class)
    basic = () if everything else getattr(config_class, "BASIC", ())
    needed = " ".join(f"--{setting.name} ..." for setting in declared if default_of(setting) is REQUIRED)
    ways = getattr(config_class, "USAGES", (needed,))  # the flags that each way of using a command needs
    usages = [f"%(prog)s {flags} [--config FILE] [--SETTING VALUE ...]" for flags in ways]
    parser = argparse.ArgumentParser(
        usage="\n       ".join(usages),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these settings; flags override it.")
    used = {setting.metadata["group"] for setting in declared} if not basic else set()
    groups = {name: parser.add_argument_group(name) for name in getattr(config_class, "GROUPS", GROUPS) if name in used}
    for setting, (kind, is_list, _) in zip(declared, kinds_of(config_class).values(), strict=True):
        options = _options_of_kind(kind) | ({"nargs": "+", "action": "extend"} if is_list else {})
        group = groups.get(setting.metadata["group"], parser)
        required, text = default_of(setting) is REQUIRED, _help_of(setting)
        if basic and setting.name not in basic:
            text = argparse.SUPPRESS
        group.add_argument(f"--{setting.name}", help=text, required=required, **options)
    if basic:
        parser.epilog = f"All {len(declared)} settings: --help all\n\n{epilog}"
    return parser


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


def run(main: Callable[[], Any]) -> None:
    """Runs an entry: a KinspanError ends as one line and status 2, Ctrl-C as status 130.

    So does what the file system refuses wherever it comes up: a full disk, a name that is too long, no permission.
    """
    try:
        if read_world(os.environ).size > 1:
            adopt_world()  # before the first line is printed: only rank 0 says what all have to say
        set_up_logging()
        main()
    except KinspanError as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader, `head` say, has seen enough, and the work may not be done
        os._exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        print("interrupted; the same command again continues", file=sys.stderr, flush=True)
        os._exit(130)
    except OSError as error:
        if error.errno not in FILE_SYSTEM_ERRORS:
            raise
        _refuse(f"{error.strerror}: {error.filename}" if error.filename else str(error))


def _refuse(text: str) -> None:
    """Ends the process with a line that says why; a name in it may hold line ends."""
    rank = int(os.environ.get("RANK", "0"))
    if rank:  # rank 0 mostly says the same, and the launcher then ends this one
        time.sleep(5)
    where = f"[rank {rank}] " if rank else ""
    print(f"{where}error: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)
    os._exit(2)  # no waiting for threads or other ranks
