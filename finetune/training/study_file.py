"""The YAML file of a study: what it may say, and the settings that it gives to each row."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from data_pipeline.errors import KinspanError, one_line
from finetune.data.registry import NAMES
from finetune.evaluation.metrics import METRICS

from .config import FinetuneConfig, check

# The rest are the study's own: launch/study.py has flags for them, and every row has an output folder.
SETTINGS = {f.name for f in fields(FinetuneConfig)} - {"data", "transfer", "output_dir", "local_rank"}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
ROW_KEYS = {"name", "settings", "paper", "tanda"}
STUDY_KEYS = {"title", "source", "settings", "rows", "about"}


@dataclass(frozen=True)
class StudyRow:
    """One experiment of a study.

    settings: those of launch/finetune.py, which take precedence over the study's
    tanda:    whether it first transfers from ``--transfer``
    paper:    the paper's figures by data set and metric
    """

    name: str
    settings: dict[str, Any]
    tanda: bool
    paper: dict[str, dict[str, float]]

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name).strip("-").lower()


@dataclass(frozen=True)
class Study:
    """What a study's file says.

    source:   the table of a paper that the study reproduces
    about:    what a reader of the results must keep in mind
    settings: of all rows
    """

    title: str
    source: str
    about: str
    settings: dict[str, Any]
    rows: list[StudyRow]


def read_study(path: Path) -> Study:
    """Reads a study's file. Raises KinspanError, naming the file and the row, where it says what it may not."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KinspanError(f"--study {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise KinspanError(f"--study {path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict) or not content.get("rows") or not isinstance(content["rows"], list):
        raise KinspanError(f"--study {path} must have a title and a list of rows; see launch/recipes/tanda-noise.yaml")
    _check_keys(path, "the study", content, STUDY_KEYS)
    _check_keys(path, "settings", content.get("settings") or {}, SETTINGS)
    rows = [_parse_row(path, entry) for entry in content["rows"]]
    for row in rows:
        if not row.folder or [other.folder for other in rows].count(row.folder) > 1:
            raise KinspanError(f"--study {path}: row {row.name}: its letters and digits must set it apart, as a folder")
    title, source, about = (str(content.get(key, "")) for key in ("title", "source", "about"))
    return Study(title or path.stem, source, about, content.get("settings") or {}, rows)


def _parse_row(path: Path, entry: Any) -> StudyRow:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise KinspanError(f"--study {path}: a row needs a name: {entry}")
    where = f"row {entry['name']}"
    _check_keys(path, where, entry, ROW_KEYS)
    settings, paper, tanda = entry.get("settings") or {}, entry.get("paper") or {}, entry.get("tanda", False)
    _check_keys(path, where, settings, SETTINGS)
    _check_keys(path, f"{where}: paper", paper, set(NAMES))
    for name, figures in paper.items():
        _check_keys(path, f"{where}: paper: {name}", figures, set(METRICS))
        for metric, figure in figures.items():
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure <= 1:
                raise KinspanError(f"--study {path}: {where}: paper: {name}: {metric} {figure}: must be from 0 to 1")
    if not isinstance(tanda, bool):
        raise KinspanError(f"--study {path}: {where}: tanda {tanda}: must be true or false")
    return StudyRow(str(entry["name"]), settings, tanda, paper)


def _check_keys(path: Path, where: str, given: Any, known: set[str]) -> None:
    """Raises KinspanError unless ``given`` is a mapping with known keys alone."""
    if not isinstance(given, dict):
        raise KinspanError(f"--study {path}: {where} must be lines of `name: value`")
    for key in given:
        if key not in known:
            raise KinspanError(f"--study {path}: {where} has {key!r}, which is none of {', '.join(sorted(known))}")


def make_config(settings: Mapping[str, Any]) -> FinetuneConfig:
    """Returns a row's settings, checked and of the right types. Raises KinspanError, naming the setting."""
    config = FinetuneConfig(**{name: _convert_setting(name, value) for name, value in settings.items()})
    check(config)
    return config


def _convert_setting(name: str, value: Any) -> Any:
    """Returns the value as the type of its setting, since YAML reads 1e-5 as text. Raises KinspanError."""
    hint = get_type_hints(FinetuneConfig)[name]
    kinds = [kind for kind in get_args(hint) if get_origin(hint) is UnionType] or [hint]
    for kind in kinds:
        if get_origin(kind) is list and isinstance(value, list) and value:
            return [_convert_value(name, one, get_args(kind)[0]) for one in value]
    return None if value is None and NoneType in kinds else _convert_value(name, value, kinds[0])


def _convert_value(name: str, value: Any, kind: Any) -> Any:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if value in choices or (kind in (bool, str) and isinstance(value, kind)):
        return value
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if kind is float or number == int(number):
                return kind(number)
    must = f"one of {', '.join(choices)}" if choices else KINDS.get(kind, "a list")
    raise KinspanError(f"{name}: {value}: must be {must}")
