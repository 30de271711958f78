"""Checks once whether the model hub can be reached, instead of half a minute of retries per file."""

from functools import cache
from pathlib import Path

from data_pipeline.core.errors import KinspanError

# Options of transformers' cached_file that make it return None for a missing file
ABSENT = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
ADVICE = "give a model's folder, a name on the hub such as roberta-base, or all-MiniLM-L6-v2, which is installed"


def expect_hub(name_or_dir: str) -> None:
    """Switches the hub's library offline, with the files it has, if a name needs the hub and that cannot be reached."""
    expect_folder(name_or_dir)
    if not Path(name_or_dir).is_dir():
        _go_offline_if_unreachable()


def expect_folder(name_or_dir: str) -> None:
    """Raises KinspanError for the path of a folder that is missing, or holds a run; a name on the hub passes."""
    folder = Path(name_or_dir)
    if not folder.is_dir():
        if name_or_dir.startswith(("/", "./", "../", "~")) or name_or_dir.count("/") > 1:
            raise KinspanError(f"no model at {name_or_dir}: there is no such folder; {ADVICE}")
    elif not (folder / "config.json").is_file():
        if best := sorted([*folder.glob("best/config.json"), *folder.glob("seed-*/best/config.json")]):
            raise KinspanError(f"no model at {folder}, but a run of kinspan finetune: name {best[0].parent}")
        if (folder / "checkpoints").is_dir():
            raise KinspanError(f"no model at {folder}, but a run: kinspan release --run_dir {folder} makes one")


@cache
def _go_offline_if_unreachable() -> None:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # no address, no route, no answer, offline already: the types are those of its HTTP library
        constants.HF_HUB_OFFLINE = True
