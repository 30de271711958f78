"""Which checkpoint a run resumes from, and loading it."""

import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

from data_pipeline.errors import KinspanError
from pretrain.runtime import ranks

from .capture import TAG
from .elastic import load_universal
from .manifest import find_damage
from .unpickling import restricted_unpickling


def get_step(checkpoint: Path) -> int:
    return int(checkpoint.name[5:])


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    return sorted((p for p in folder.glob("step-*") if p.name[5:].isdecimal()), key=get_step, reverse=True)


def remove_later(folder: Path, step: int) -> None:
    """Removes the checkpoints, or releases, of later steps: the run went back, and they are none of its."""
    for checkpoint in list_checkpoints(folder):
        if get_step(checkpoint) > step:
            shutil.rmtree(checkpoint, ignore_errors=True)


def find_newest(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, up to a step if given, and a line for each newer one that does not."""
    skipped: list[str] = []
    for checkpoint in list_checkpoints(folder):
        if last_step is not None and get_step(checkpoint) > last_step:
            continue
        wrong = find_damage(checkpoint)
        if wrong is None:
            return checkpoint, skipped
        skipped.append(f"{checkpoint}: {wrong}")
    return None, skipped


def newest_on_all_ranks(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """``find_newest`` as rank 0 finds it, for all ranks: they must resume from one checkpoint."""
    return ranks.broadcast_from_rank_0(lambda: find_newest(folder, last_step))


def load_checkpoint(engine: Any, checkpoint: Path, world: int, universal: Path | None = None) -> dict[str, Any]:
    """Puts a verified checkpoint into the engine and returns the loop's state.

    universal: what elastic.convert_to_universal made of it, where another number of ranks wrote it under ZeRO
    """

    if universal:
        load_universal(engine, universal)
    else:
        with restricted_unpickling(), chdir(checkpoint):  # DeepSpeed takes [ and * in a path for wildcards
            path, _ = engine.load_checkpoint(".", tag=TAG)
        if path is None:
            raise KinspanError(f"{checkpoint} could not be loaded by DeepSpeed: remove it to go on from an older one")
    return json.loads((checkpoint / "state.json").read_text()) | {"world_size": world}
