"""Finds the checkpoint that a run resumes from, and loads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from data_pipeline.core.errors import KinspanError
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import load_own_checkpoint
from pretrain.engine.engine import puts_odd_sizes_last

from .capture import BASE, TAG, find_base
from .elastic import load_universal
from .manifest import find_damage


def get_step(checkpoint: Path) -> int:
    """The step in the folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in the folder, whole or damaged, newest first."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=get_step, reverse=True)


def remove_later(folder: Path, step: int) -> None:
    """Removes the checkpoints or releases of later steps, which a run that went back has not come to."""
    for checkpoint in list_checkpoints(folder):
        if get_step(checkpoint) > step:
            shutil.rmtree(checkpoint, ignore_errors=True)


def find_newest(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and a line about each newer one that is damaged.

    last_step: later checkpoints are not considered

    Raises OSError where the storage does not let a checkpoint be read.
    """
    skipped: list[str] = []
    for checkpoint in list_checkpoints(folder):
        if last_step is not None and get_step(checkpoint) > last_step:
            continue
        damage = find_damage(checkpoint)
        if damage is None:
            return checkpoint, skipped
        skipped.append(f"{checkpoint}: {damage}")
    return None, skipped


def newest_on_all_ranks(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """What ``find_newest`` returns on rank 0, for all ranks: they must resume from the same checkpoint."""
    return ranks.broadcast_from_rank_0(lambda: find_newest(folder, last_step))


def find_resumable(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint, from which all ranks resume; None where there is no checkpoint at all.

    say: told, on every rank, of each newer checkpoint that is not whole

    Raises KinspanError where there are checkpoints and none of them is whole: a run that began again would remove them.
    """
    found, skipped = newest_on_all_ranks(folder)
    for line in skipped:
        say(f"skipped a checkpoint that is not whole: {line}")
    if skipped and not found:
        raise KinspanError(
            f"none of the checkpoints in {folder} is whole, see above: put a copy back, or delete that folder to start "
            "from the beginning"
        )
    return found


def load_checkpoint(engine: Any, checkpoint: Path, world: int, universal: Path | None = None) -> dict[str, Any]:
    """Loads a verified checkpoint into the engine, and returns the state of the training loop.

    world:     the number of ranks now, which replaces the one in the state, as the order of parameters does
    universal: what ``elastic.convert_to_universal`` returned for this checkpoint

    Raises KinspanError where DeepSpeed finds nothing to load, or an adapter's checkpoint is of another base.
    """
    base = find_base(engine.module)
    with safe_open(str(checkpoint / "weights.safetensors"), "pt") as weights:
        theirs = (weights.metadata() or {}).get(BASE)
    if base and theirs != base:
        raise KinspanError(
            f"{checkpoint} is of an adapter beside the base {str(theirs)[:12]}, and --model has the fingerprint "
            f"{base[:12]}: give the base that it belongs to"
        )
    if universal:
        load_universal(engine, universal)
    else:
        if not load_own_checkpoint(engine, checkpoint, TAG, without_frozen=base is not None):
            raise KinspanError(f"{checkpoint} could not be loaded by DeepSpeed: remove it to go on from an older one")
    now = {"world_size": world, "odd_sizes_last": puts_odd_sizes_last()}
    return json.loads((checkpoint / "state.json").read_text()) | now
