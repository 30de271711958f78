"""Declares settings as dataclass fields, from which checks, ``--help`` and a run's identity follow.

The help text of a setting is the string below its declaration::

    max_steps: int | None = setting(None, ABOVE_0)
    '''Number of updates.'''

A class attribute ``GROUP`` names the section of ``--help`` that lists the settings of a class.
"""

import ast
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from data_pipeline.core.default_model import resolve_model
from data_pipeline.core.errors import KinspanError, prefix_errors
from data_pipeline.core.executors import MAX_WORKERS
from data_pipeline.core.hub import expect_folder


class Settings(Protocol):
    """Stands for any dataclass whose fields are settings."""

    __dataclass_fields__: ClassVar[dict[str, Field]]


Config = TypeVar("Config", bound=Settings)
REQUIRED = MISSING  # the default of a setting that must be given
YES, NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Range(NamedTuple):
    """Limits the numbers that a setting may take. ``rule`` ends the sentence "--name value: ..."."""

    rule: str
    allows: Callable[[float], bool]


ABOVE_0 = Range("must be above 0", lambda number: number > 0)
NOT_BELOW_0 = Range("must not be below 0", lambda number: number >= 0)
ABOVE_0_BELOW_1 = Range("must be above 0 and below 1", lambda number: 0 < number < 1)
FROM_0_TO_1 = Range("must be from 0 to 1", lambda number: 0 <= number <= 1)
FROM_0_TO_BELOW_1 = Range("must be from 0 to below 1", lambda number: 0 <= number < 1)
AT_LEAST_2 = Range("must be 2 or more", lambda number: number >= 2)
WORKERS = Range(f"must be from 1 to {MAX_WORKERS}", lambda number: 1 <= number <= MAX_WORKERS)
SEEDS_FROM_1 = Range("must be from 1 to 2^63 - 1", lambda number: 1 <= number < 2**63)
SEEDS = Range("must be from 0 to 2^63 - 1", lambda number: 0 <= number < 2**63)


def setting(
    default: object,
    within: Range | None = None,
    *,
    help: str = "",
    may_change: bool = False,
    needs: str = "",
    used_with: str = "",
    is_model: bool = False,
) -> Any:
    """Declares a setting, as a field of a dataclass.

    default:    ``REQUIRED`` if there is none; a list is copied for each config
    within:     the range of its number, or of each number of its list; a value of None is always allowed
    help:       the text, if it cannot be written below the declaration because it is computed
    may_change: a resumed run may change it; a change of any other setting makes another run
    needs:      the setting that must be given too: "a", "a|b" (either one) or "a x y" (with the value x or y)
    used_with:  like ``needs``, but without that setting this one is ignored, which ``list_unused`` notes
    is_model:   its value names models; DEFAULT_MODEL_NAME is replaced by the folder of its package
    """
    metadata = {name: value for name, value in locals().items() if name != "default"}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class CacheSettings(NamedTuple):
    """Says where a node keeps fetched shards (None: in the user's cache), and their maximum size in gigabytes."""

    folder: str | None = None
    gigabytes: float = 20.0


@dataclass
class CacheFlags:
    """Says where shards of remote corpora are kept."""

    cache_dir: str | None = setting(None, may_change=True)
    """Folder for the shards of remote corpora, shared by all ranks and runs of this machine. Default: one in the user's
    cache."""
    cache_gb: float = setting(20.0, ABOVE_0, may_change=True)
    """Maximum gigabytes of shards in that folder; the least recently used ones are removed first."""

    @property
    def cache(self) -> CacheSettings:
        """Returns the cache that the flags ask for."""
        return CacheSettings(self.cache_dir, self.cache_gb)


class ValueType(NamedTuple):
    """Holds the type of a setting's value, whether the setting is a list of such values, and whether it may be None."""

    type: type
    is_list: bool
    may_be_none: bool


@cache
def get_value_types(config_class: type[Settings]) -> dict[str, ValueType]:
    """Returns the type of each setting, by its name."""
    kinds, hints = {}, get_type_hints(config_class)
    for name in (declared.name for declared in fields(config_class)):
        parts = get_args(hints[name]) if get_origin(hints[name]) in (UnionType, Union) else (hints[name],)
        kind = next(part for part in parts if part is not NoneType)
        is_list = get_origin(kind) is list
        kinds[name] = ValueType(get_args(kind)[0] if is_list else kind, is_list, NoneType in parts)
    return kinds


@cache
def read_help_texts(config_class: type[Settings]) -> dict[str, str]:
    """Returns the help text of each setting, parsed from the source of its class."""
    texts = {declared.name: declared.metadata["help"] for declared in fields(config_class)}
    for owner in reversed(config_class.__mro__[:-1]):
        tree = ast.parse(inspect.getsource(sys.modules[owner.__module__])).body
        body = next(node.body for node in tree if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
        for declared, text in pairwise(body):
            if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(declared.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts


@cache
def get_groups(config_class: type[Settings]) -> dict[str, str]:
    """Returns the group of each setting, in the order of ``--help``."""
    groups: dict[str, str] = {}
    for owner in reversed(config_class.__mro__[:-1]):
        for name in (declared.name for declared in fields(owner) if "GROUP" in vars(owner)):
            groups.setdefault(name, vars(owner)["GROUP"])
    return {declared.name: groups.get(declared.name, "") for declared in fields(config_class)}


def get_default(declared: Field) -> object:
    """Returns the default of a setting; ``REQUIRED`` if it must be given."""
    return declared.default_factory() if callable(declared.default_factory) else declared.default


def check_settings(config: Settings) -> None:
    """Raises KinspanError, naming the flag, for a number out of range, or a setting whose ``needs`` are not met."""
    for declared in fields(config):
        value, within = getattr(config, declared.name), declared.metadata["within"]
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise KinspanError(f"--{declared.name} {number}: must be a finite number")
            if within and number is not None and not within.allows(number):
                raise KinspanError(f"--{declared.name} {number}: {within.rule}")
        if value != get_default(declared) and not _is_met(config, declared.metadata["needs"]):
            raise KinspanError(f"--{declared.name} needs --{declared.metadata['needs'].replace('|', ' or --')}")


def expect_models(config: Settings) -> None:
    """Raises KinspanError, naming the flag, for a model's folder that is missing or holds a run."""
    for declared in (declared for declared in fields(config) if declared.metadata["is_model"]):
        value = getattr(config, declared.name)
        for name in value if isinstance(value, list) else filter(None, [value]):
            with prefix_errors(f"--{declared.name}"):
                expect_folder(name)


def list_unused(config: Settings) -> list[str]:
    """Returns a note for each setting that has no effect, because its ``used_with`` is not met."""
    return [
        f"ignored without --{declared.metadata['used_with']}: --{declared.name}"
        for declared in fields(config)
        if getattr(config, declared.name) != get_default(declared)
        and not _is_met(config, declared.metadata["used_with"])
    ]


def _is_met(config: Settings, condition: str) -> bool:
    """Returns whether a condition of ``needs`` or ``used_with`` is met."""
    if not condition:
        return True
    names, *values = condition.split()
    settings = [getattr(config, name) for name in names.split("|")]
    return any(value in values if values else value not in (None, False, []) for value in settings)


def refuse_first(cases: Iterable[tuple[object, str]]) -> None:
    """Raises KinspanError with the message of the first case that is true."""
    for is_wrong, message in cases:
        if is_wrong:
            raise KinspanError(message)


def get_identity_settings(config: Settings) -> dict[str, Any]:
    """Returns the settings that a run may not change when it resumes."""
    return {f.name: getattr(config, f.name) for f in fields(config) if not f.metadata["may_change"]}


def make_config(config_class: type[Config], values: Mapping[str, object]) -> Config:
    """Makes a config from values as YAML or the command line give them. Raises KinspanError, naming the setting."""
    return config_class(**{name: convert_setting(config_class, name, value) for name, value in values.items()})


def convert_setting(config_class: type[Settings], name: str, value: object) -> Any:
    """Converts a value to its setting's type: YAML reads 1e-5 as text. A single value becomes a list of one."""
    if name not in get_value_types(config_class):
        raise KinspanError(f"there is no setting {name!r}; {suggest(config_class, name)}")
    kind, is_list, may_be_none = get_value_types(config_class)[name]
    declared = config_class.__dataclass_fields__[name]
    if value is None and may_be_none:
        return None
    if not is_list:
        return _convert(declared, kind, value)
    if value == [] and get_default(declared) != []:
        raise KinspanError(f"--{name} []: must have a value")
    return [_convert(declared, kind, each) for each in (value if isinstance(value, list | tuple) else [value])]


def _convert(declared: Field, kind: type, value: object) -> object:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if kind is str:
        return _convert_text(declared, value)
    if value in choices or (kind is bool and isinstance(value, bool)):
        return value
    if kind is bool and isinstance(value, str) and value.lower() in YES + NO:
        return value.lower() in YES
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return _to_number(kind, value)
    must = f"one of {', '.join(choices)}" if choices else TYPE_NAMES[kind]
    raise KinspanError(f"--{declared.name} {value}: must be {must}")


def _convert_text(declared: Field, value: object) -> str:
    if isinstance(value, bool | dict | list | None):
        raise KinspanError(f"--{declared.name} {value}: must be text")
    text = os.path.expanduser(str(value)) if str(value).startswith("~/") else str(value)
    if not text and get_default(declared) != "":  # such as "$MODEL", which is not set
        raise KinspanError(f"--{declared.name}: is empty")
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise KinspanError(f"--{declared.name} {text!r}: holds a character that is not UTF-8")
    return resolve_model(text) if declared.metadata["is_model"] else text


def _to_number(kind: type, value: float | str) -> float:
    if kind is int and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)  # a float would round large ones
    number = float(value)
    if kind is int and number != int(number):
        raise ValueError
    return kind(value if isinstance(value, kind) else number)  # an int is not rounded


def suggest(config_class: type[Settings], name: str, prefix: str = "") -> str:
    """Returns advice for a name that is no setting: those with its letters, or with its initials, such as lr."""
    names = get_value_types(config_class)
    near = [known for known in names if "".join(word[0] for word in known.split("_")) == name][:1]
    near = near or get_close_matches(str(name), names, n=2)
    return f"did you mean {' or '.join(prefix + match for match in near)}?" if near else "see --help"
