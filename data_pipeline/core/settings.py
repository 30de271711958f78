"""Settings as dataclass fields: checks, ``--help`` and a run's identity are all read from one declaration of each."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.executors import MAX_WORKERS
from data_pipeline.remote.cache import DEFAULT_GIGABYTES, CacheSettings

Section = TypeVar("Section")
# The groups of --help, in its order.
DATA, MODEL, OBJECTIVE, OPTIMISATION = "data", "model", "objective", "optimisation"
BATCHES, VALIDATION, CHECKPOINTS, MONITORING = "batches", "validation", "checkpoints", "monitoring"
GROUPS = (DATA, MODEL, OBJECTIVE, OPTIMISATION, BATCHES, VALIDATION, CHECKPOINTS, MONITORING)

# Settings that runs of earlier versions lack, as those runs have them: an identity leaves them out at these values
LATER: dict[str, Any] = {"lr_schedule": "triangular", "decay_share": 0.2}
REQUIRED = MISSING  # the default of a setting that must be given
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may take. ``rule``: what ends the sentence "--name value: ..."."""

    rule: str
    allows: Callable[[float], bool]


ABOVE_0 = Range("must be above 0", lambda number: number > 0)
NOT_BELOW_0 = Range("must not be below 0", lambda number: number >= 0)
BETWEEN_0_AND_1 = Range("must lie between 0 and 1", lambda number: 0 < number < 1)
FROM_0_TO_1 = Range("must be from 0 to 1", lambda number: 0 <= number <= 1)
FROM_0_TO_BELOW_1 = Range("must be from 0 to less than 1", lambda number: 0 <= number < 1)
AT_LEAST_2 = Range("must be 2 or more", lambda number: number >= 2)
WORKERS = Range(f"must be from 1 to {MAX_WORKERS}", lambda number: 1 <= number <= MAX_WORKERS)
SEEDS_FROM_1 = Range("must be from 1 to 2^63 - 1", lambda number: 1 <= number < 2**63)
SEEDS = Range("must be from 0 to 2^63 - 1", lambda number: 0 <= number < 2**63)


def setting(
    default: Any,
    text: str,
    group: str = "",
    within: Range | None = None,
    *,
    may_change: bool = False,
    old_name: str | None = None,
    as_text: Callable[[Any], str] | None = None,
    is_model: bool = False,
) -> Any:
    """Declares a setting, as a field of a dataclass.

    default:    ``REQUIRED`` where there is none; a list stands for a copy of itself
    group:      one of ``GROUPS``, or see ``section``; without one, ``--help`` lists the setting under its options
    within:     what its number, or each number of its list, may be; None passes
    may_change: a run that resumes may change it; any other change makes it another run
    old_name:   a former name, which the command line still accepts
    as_text:    writes a value of a list in a YAML file as the command line takes it
    is_model:   it names models, of which the one that is installed is found by its name
    """
    known = {"help": text, "group": group, "within": within, "may_change": may_change, "old_name": old_name}
    metadata = {**known, "as_text": as_text, "is_model": is_model}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(group: str) -> Callable[[type[Section]], type[Section]]:
    """Marks all settings of a dataclass as of this group of ``--help``."""

    def mark(config_class: type[Section]) -> type[Section]:
        for declared in fields(config_class):  # type: ignore[arg-type]
            declared.metadata = MappingProxyType({**declared.metadata, "group": group})
        return config_class

    return mark


def cache_dir(group: str = "") -> Any:
    """Declares the setting of where the shards of remote corpora are kept."""
    text = (
        "Folder on a disk of this machine for the shards of remote corpora, shared by all its ranks and runs. Without "
        "it: one in the user's cache."
    )
    return setting(None, text, group, may_change=True)


def cache_gb(group: str = "") -> Any:
    """Declares the setting of how much that folder may hold."""
    text = "Gigabytes of shards in that folder at most; those used longest ago leave first."
    return setting(DEFAULT_GIGABYTES, text, group, ABOVE_0, may_change=True)


def allow_cpu(group: str = "") -> Any:
    """Declares the setting of whether GPUs that cannot be used are an error."""
    text = "Train on the processor although this machine has GPUs that torch cannot use. Without it that is an error."
    return setting(False, text, group, may_change=True)


def tf32(group: str = "") -> Any:
    """Declares the setting of how GPUs multiply fp32 matrices."""
    text = (
        "Multiply fp32 matrices in TF32 (inputs of 10 bits of mantissa) on GPUs that have it, at up to eight times the "
        "speed; off with --deterministic. It matters with --precision fp32."
    )
    return setting(True, text, group, may_change=True)


def default_of(declared: Field) -> Any:
    """The default of a setting; ``REQUIRED`` where it must be given."""
    return declared.default_factory() if callable(declared.default_factory) else declared.default


def check_needed(config: Any, needed: str, *names: str) -> None:
    """Raises KinspanError where one of ``names`` is set, but not ``needed``, without which it has no effect."""
    if getattr(config, needed) in (None, False):
        for declared in fields(config):
            if declared.name in names and getattr(config, declared.name) != default_of(declared):
                raise KinspanError(f"--{declared.name} needs --{needed}: give both, or neither")


def cache_settings(config: Any) -> CacheSettings:
    """The cache that a config with ``cache_dir`` and ``cache_gb`` asks for."""
    return CacheSettings(config.cache_dir, config.cache_gb)


def check_ranges(config: Any) -> None:
    """Raises KinspanError for the first number that is not finite or out of its setting's range, naming the flag."""
    for declared in fields(config):
        value, within = getattr(config, declared.name), declared.metadata["within"]
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise KinspanError(f"--{declared.name} {number}: must be a finite number")
            if within and number is not None and not within.allows(number):
                raise KinspanError(f"--{declared.name} {number}: {within.rule}")


def settings_of_identity(config: Any) -> dict[str, Any]:
    """The settings that a run may not change when it resumes, under the names that identities of earlier runs have."""
    kept = [f for f in fields(config) if not f.metadata["may_change"]]
    return leave_out_later({f.metadata["old_name"] or f.name: getattr(config, f.name) for f in kept})


def leave_out_later(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without those of ``LATER`` that have the value there."""
    return {name: value for name, value in settings.items() if name not in LATER or value != LATER[name]}


def kinds_of(config_class: type) -> dict[str, tuple[Any, bool, bool]]:
    """Of each setting the type of one value (a Literal, too), whether it is a list, and whether it may be None."""
    kinds = {}
    hints = get_type_hints(config_class)
    for name in (own.name for own in fields(config_class)):
        hint = hints[name]
        parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        kind = next(part for part in parts if part is not NoneType)
        is_list = get_origin(kind) is list
        kinds[name] = (get_args(kind)[0] if is_list else kind, is_list, NoneType in parts)
    return kinds


def convert_setting(config_class: type, name: str, value: Any) -> Any:
    """A value that YAML read, as its setting's type: YAML reads 1e-5 as text. One value is a list of one.

    Raises KinspanError for a value of another type, with the setting's name and no more of where it stands.
    """
    kind, is_list, may_be_none = kinds_of(config_class)[name]
    if value is None and may_be_none:
        return None
    if not is_list:
        return _convert(name, value, kind)
    if value == [] and not may_be_empty(config_class, name):
        raise KinspanError(f"{name}: []: must have a value")
    as_text = next(declared.metadata["as_text"] for declared in fields(config_class) if declared.name == name)
    values = value if isinstance(value, list) else [value]
    return [_convert(name, as_text(one) if as_text else one, kind) for one in values]


def may_be_empty(config_class: type, name: str) -> bool:
    """Whether a setting is a list that may have no values, as it is by default."""
    return any(declared.name == name and default_of(declared) == [] for declared in fields(config_class))


def _convert(name: str, value: Any, kind: Any) -> Any:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if value in choices or (kind in (bool, str) and isinstance(value, kind)):
        return value
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if kind is float or number == int(number):
                return kind(number)
    must = f"one of {', '.join(choices)}" if choices else TYPE_NAMES[kind]
    raise KinspanError(f"{name}: {value}: must be {must}")
