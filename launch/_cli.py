"""What the entries share: flags from a dataclass, a YAML file below them, errors as one line."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a hub that cannot be reached is one line of ours, not ten

from transformers import HfArgumentParser

from data_pipeline.errors import FILE_SYSTEM_ERRORS, KinspanError, one_line

Config = TypeVar("Config")


def parse(config_class: type[Config], description: str, epilog: str = "", argv: list[str] | None = None) -> Config:
    """The settings from ``--config FILE.yaml`` (if given) and the flags, which override it.

    A line of the file becomes the flag of its name, so that both are checked alike, unless that flag is given too: of
    a flag that adds to a list, both would count.
    """
    from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter

    class Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
        pass

    parser = HfArgumentParser(
        config_class,  # type: ignore[arg-type]
        description=description,
        epilog=epilog,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", help="YAML file with any of these settings; flags override it.")
    argv = sys.argv[1:] if argv is None else argv
    known = [f.name for f in fields(config_class)]  # type: ignore[arg-type]
    given = {argument[2:].split("=", 1)[0].replace("-", "_") for argument in argv if argument.startswith("--")}
    from_file: list[str] = []
    for number, argument in enumerate(argv):
        if argument == "--config" and number + 1 < len(argv):
            from_file += _file_as_flags(argv[number + 1], known, given)
        elif argument.startswith("--config="):
            from_file += _file_as_flags(argument.split("=", 1)[1], known, given)
    values = vars(parser.parse_args(from_file + argv))
    values.pop("config")
    for name, value in values.items():
        _check_text(name, value)
    return config_class(**values)


def _check_text(name: str, value: Any) -> None:
    """Refuses what no file can be named by, and what cannot be written to a log."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and ("\0" in text or (not text.isascii() and _has_surrogates(text))):
            raise KinspanError(f"--{name} {text!r}: holds a character that is none of UTF-8's; write or rename it anew")


def _has_surrogates(text: str) -> bool:
    """Stand-ins for bytes of the command line that are not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _file_as_flags(name: str, known: list[str], given: set[str]) -> list[str]:
    """The file's settings but for those ``given`` as flags."""
    try:
        settings = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise KinspanError(f"--config {name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # a date with a 13th month is a ValueError
        raise KinspanError(f"--config {name} cannot be read: {one_line(error)}") from error
    if settings is None:
        return []
    if not isinstance(settings, dict):
        raise KinspanError(f"--config {name} must be lines of `setting: value`")
    flags: list[str] = []
    for key, value in settings.items():
        if key not in known:
            raise KinspanError(f"--config {name}: there is no setting {key!r}; see --help")
        if value is None or key in given:
            continue
        values = value if isinstance(value, list) else [value]
        flags += [f"--{key}", *map(str, values)] if isinstance(value, list) else [f"--{key}={values[0]}"]
    return flags


def run(main: Callable[[], Any]) -> None:
    """Runs an entry: a KinspanError ends as one line and status 2, Ctrl-C as status 130.

    So does what the file system refuses wherever it comes up: a full disk, a name that is too long, no permission.
    """
    try:
        main()
    except KinspanError as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os._exit(0)
    except KeyboardInterrupt:
        print("interrupted; the same command again goes on", file=sys.stderr, flush=True)
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
