"""The files of the commands."""

import importlib
from pathlib import Path

from launch.kinspan import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def name_module(command):
    """The name of a command's module: inspect_pairs of "show pairs"."""
    return COMMANDS[command][0].rpartition(".")[2]


MODULES = {name_module(command): f"launch.{COMMANDS[command][0]}" for command in COMMANDS}
MODULES["kinspan"] = "launch.kinspan"


def program_of(entry):
    """What starts a command's module, such as inspect_pairs: its own script, or kinspan and the command."""
    (command,) = [command for command in COMMANDS if name_module(command) == entry] or [""]
    if "." in MODULES[entry].removeprefix("launch."):
        return [ROOT / "launch/kinspan.py", *command.split()]
    return [ROOT / f"launch/{entry}.py"]


def module_of(entry):
    return importlib.import_module(MODULES[entry])
