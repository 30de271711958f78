"""The YAML file of a study: what it may say, and the settings that it gives to each row."""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_yaml
from data_pipeline.core.settings import make_config as settings_to_config
from finetune.data.registry import NAMES
from finetune.evaluation.metrics import TITLES
from finetune.training.config import FinetuneConfig, check

from .matrix import make_matrix
from .rows import KINDS, PRETRAIN, TRANSFER, StageOfRow, Study, StudyRow

# The rest are the study's own: kinspan study has flags for them, and every row has an output folder.
OWN = {"data", "transfer", "transfer_targets", "transfer_dir", "output_dir", "local_rank"}
SETTINGS = {f.name for f in fields(FinetuneConfig)} - OWN
COMMON = ("eval_filter", "columns")  # rows are compared question by question, so that all measure the same ones
ROW_KEYS = {"name", "settings", "paper", "tanda", "pretrain", "stages"}
STUDY_KEYS = {"title", "source", "settings", "rows", "about", "zero_shot", "where"}
# What a stage of fine-tuning may say: a data set of its own, and no seeds, since it runs once for all
STAGE_KEYS = (SETTINGS | {"data"}) - {"seeds", "seed", "train_data", "model", *COMMON}


def read_study(path: Path) -> Study:
    """Reads a study's file. Raises KinspanError, naming the file and the row, where it says what it may not."""
    content = read_yaml(path, f"--study {path}")
    if isinstance(content, dict) and "groups" in content:
        try:
            return make_matrix(path, content)
        except (LookupError, TypeError, AttributeError) as error:
            raise KinspanError(
                f"--study {path}: its groups cannot be read ({quote_error(error)}): write them as in "
                "benchmarks/evidence/recipe.yaml"
            ) from error
    if not isinstance(content, dict) or not content.get("rows") or not isinstance(content["rows"], list):
        raise KinspanError(f"--study {path} must have a title and a list of rows; see launch/recipes/tanda-noise.yaml")
    _check_keys(path, "the study", content, STUDY_KEYS)
    _check_keys(path, "settings", content.get("settings") or {}, SETTINGS)
    rows = [_parse_row(path, entry) for entry in content["rows"]]
    for row in rows:
        if not row.folder or [other.folder for other in rows].count(row.folder) > 1:
            raise KinspanError(f"--study {path}: row {row.name}: its letters and digits must set it apart, as a folder")
    title, source, about = (str(content.get(key, "")) for key in ("title", "source", "about"))
    zero_shot = content.get("zero_shot", False)
    if not isinstance(zero_shot, bool):
        raise KinspanError(f"--study {path}: zero_shot {zero_shot}: must be true or false")
    where = content.get("where") or {}
    if not isinstance(where, dict):
        raise KinspanError(f"--study {path}: where must be lines of `name: value`")
    names = {str(name): str(value) for name, value in where.items()}
    return Study(title or path.stem, source, about, content.get("settings") or {}, rows, zero_shot, names)


def _parse_row(path: Path, entry: Any) -> StudyRow:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise KinspanError(f"--study {path}: a row needs a name: {entry}")
    where = f"row {entry['name']}"
    _check_keys(path, where, entry, ROW_KEYS)
    settings, paper, tanda = entry.get("settings") or {}, entry.get("paper") or {}, entry.get("tanda", False)
    _check_keys(path, where, settings, SETTINGS)
    for name in COMMON:
        if name in settings:
            raise KinspanError(
                f"--study {path}: {where} sets {name}, but its rows are compared on the same questions: "
                "set it in the study's settings"
            )
    _check_keys(path, f"{where}: paper", paper, set(NAMES))
    for name, figures in paper.items():
        _check_keys(path, f"{where}: paper: {name}", figures, set(TITLES))
        for metric, figure in figures.items():
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure <= 1:
                raise KinspanError(f"--study {path}: {where}: paper: {name}: {metric} {figure}: must be from 0 to 1")
    if not isinstance(tanda, bool):
        raise KinspanError(f"--study {path}: {where}: tanda {tanda}: must be true or false")
    pretrain = entry.get("pretrain")
    if not (pretrain is None or (isinstance(pretrain, dict) and all(isinstance(key, str) for key in pretrain))):
        raise KinspanError(f"--study {path}: {where}: pretrain must be lines of `name: value`")
    stages = _parse_stages(path, where, entry.get("stages") or [])
    if stages and (pretrain is not None or tanda):
        raise KinspanError(f"--study {path}: {where}: stages say it all: pretrain and tanda do not go with them")
    if pretrain is not None:
        stages = (StageOfRow(PRETRAIN, pretrain),)
    if tanda:
        stages = (*stages, StageOfRow(TRANSFER, {}))
    return StudyRow(str(entry["name"]), settings, paper, stages)


def _parse_stages(path: Path, where: str, entries: Any) -> tuple[StageOfRow, ...]:
    if not isinstance(entries, list):
        raise KinspanError(f"--study {path}: {where}: stages must be a list, such as - pretrain: {{...}}")
    stages = []
    for number, entry in enumerate(entries, 1):
        what = f"{where}: stage {number}"
        if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in KINDS:
            raise KinspanError(f"--study {path}: {what}: must be one of {' and '.join(KINDS)}, with its settings")
        ((kind, settings),) = entry.items()
        if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
            raise KinspanError(f"--study {path}: {what}: {kind} must be lines of `name: value`")
        if kind == "finetune":
            _check_keys(path, what, settings, STAGE_KEYS)
            if "data" not in settings:
                raise KinspanError(f"--study {path}: {what}: finetune needs data, such as data: askubuntu_qa=FOLDER")
        stages.append(StageOfRow(kind, settings))
    return tuple(stages)


def _check_keys(path: Path, where: str, given: Any, known: set[str]) -> None:
    """Raises KinspanError unless ``given`` is a mapping with known keys alone."""
    if not isinstance(given, dict):
        raise KinspanError(f"--study {path}: {where} must be lines of `name: value`")
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            advice = f"did you mean {near[0]}?" if near else f"which is none of {', '.join(sorted(known))}"
            raise KinspanError(f"--study {path}: {where} has {key!r}, {advice}")


def make_config(settings: Mapping[str, Any]) -> FinetuneConfig:
    """Returns a row's settings, checked and of the right types. Raises KinspanError, naming the setting."""
    config = settings_to_config(FinetuneConfig, settings)
    check(config)
    return config
