"""Finds the checkpoint that a run resumes from, and loads it.

If the number of ranks has changed, or a GPU resumes what a CPU began, the checkpoint is first converted to DeepSpeed's
universal form, with unsharded parameters and moments. This is made beside the checkpoints, and removed once loaded.
"""

import json
import logging
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import (
    Engine,
    adapt_loss_scaling,
    load_sharded_checkpoint,
    load_universal_checkpoint,
    write_universal_checkpoint,
)
from pretrain.engine.engine import puts_odd_sizes_last

from .manifest import BASE, TAG, find_base, find_damage

log = logging.getLogger(__name__)
FOLDER = "universal.tmp"
OPTIMIZER_FILES = "*zero_pp_rank_*_optim_states.pt"  # ZeRO 0 writes none


def get_step(checkpoint: Path) -> int:
    """Returns the step in the folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in the folder, also damaged ones, newest first."""
    paths = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(paths, key=get_step, reverse=True)


def find_newest(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """Returns the newest valid checkpoint up to ``last_step``, and a line about each newer one, which is damaged.

    Raises OSError if the storage cannot be read.
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


def find_resumable(folder: Path) -> Path | None:
    """Returns on all ranks the newest valid checkpoint that rank 0 finds; None if there is no checkpoint at all.

    Raises KinspanError if all are damaged, because a run that began anew would remove them.
    """
    newest, skipped = ranks.broadcast_from_rank_0(lambda: find_newest(folder))
    for line in skipped:
        log.warning("skipped a damaged checkpoint: %s", line)
    if skipped and not newest:
        raise KinspanError(f"none of the checkpoints in {folder} is valid: put a copy back, or delete that folder")
    if not newest and folder.is_dir():
        log.info("%s holds no complete checkpoint: the run begins anew", folder)
    return newest


def load_checkpoint(engine: Engine, checkpoint: Path, world: int, universal: Path | None = None) -> JsonObject:
    """Loads a verified checkpoint into the engine, and returns the state of the training loop.

    world:     current number of ranks; it replaces that in the state, as does the current order of parameters
    universal: result of ``convert_to_universal`` for this checkpoint; it is removed
    """
    base = find_base(engine.module)
    with safe_open(str(checkpoint / "weights.safetensors"), "pt") as weights:
        stored_base = (weights.metadata() or {}).get(BASE)
    if base and stored_base != base:
        raise KinspanError(f"--model: {checkpoint} is an adapter of base {str(stored_base)[:12]}, not {base[:12]}")
    load, folder = (load_universal_checkpoint, universal) if universal else (load_sharded_checkpoint, checkpoint)
    if not load(engine, folder, TAG, base is not None):
        raise KinspanError(f"{folder} could not be loaded by DeepSpeed: remove {checkpoint} to resume an older one")
    adapt_loss_scaling(engine)  # again: the loss scaler that was loaded is another object
    if universal:
        ranks.barrier()
        if engine.global_rank == 0:
            shutil.rmtree(universal, ignore_errors=True)
    current = {"world_size": world, "odd_sizes_last": puts_odd_sizes_last()}
    return json.loads((checkpoint / "state.json").read_text()) | current


def convert_to_universal(checkpoint: Path, world: int, rank: int) -> Path | None:
    """Returns the universal form of a verified checkpoint, made by rank 0; None if ``world`` ranks can load it as is.

    All ranks call it, before the engine takes memory. The checkpoint itself is never changed.
    """
    state = json.loads((checkpoint / "state.json").read_text())
    old_world, same_order = state["world_size"], state.get("odd_sizes_last", False) == puts_odd_sizes_last()
    folder = checkpoint.parent / FOLDER
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # a conversion that was killed may have left it
    if (old_world == world and same_order) or not any((checkpoint / TAG).glob(OPTIMIZER_FILES)):
        return None
    if rank == 0:
        log.info("%s was written by %d ranks, or on another device: converting it for %d", checkpoint, old_world, world)
    if failure := ranks.broadcast_from_rank_0(lambda: _try_to_convert(checkpoint, folder)):
        raise KinspanError(f"{checkpoint} of {old_world} ranks could not be converted for {world}: {failure}")
    return folder


def _try_to_convert(checkpoint: Path, folder: Path) -> str | None:
    """Converts and compares. Returns None on success, else what went wrong, after removing the result."""
    needed = 2 * sum(path.stat().st_size for path in (checkpoint / TAG).iterdir())  # first in pieces, then joined
    free = shutil.disk_usage(checkpoint.parent).free
    if free < needed:
        return f"that temporarily takes {needed / 1e9:.1f} GB beside it, and {free / 1e9:.1f} GB are free"
    try:
        write_universal_checkpoint(checkpoint.parent, f"{checkpoint.name}/{TAG}", f"{folder.name}/{TAG}")
        failure = _find_difference(checkpoint, folder)
    except Exception as error:  # of any type: the other ranks wait for the result
        failure = " ".join(f"{type(error).__name__}: {error}".split())
        if shutil.disk_usage(checkpoint.parent).free < 2**20:
            failure = f"the disk is full ({failure})"  # torch only says "unexpected pos"
    if failure:
        shutil.rmtree(folder, ignore_errors=True)
    return failure


def _find_difference(checkpoint: Path, folder: Path) -> str | None:
    """Returns which parameter differs by a bit from weights.safetensors, if any: the converter checks nothing."""
    with safe_open(str(checkpoint / "weights.safetensors"), "pt") as weights:
        for name in weights.keys():  # noqa: SIM118
            converted = torch.load(folder / TAG / "zero" / name / "fp32.pt")
            converted = converted["param"] if isinstance(converted, dict) else converted
            if not torch.equal(converted.flatten(), weights.get_tensor(name).flatten()):
                return f"its {name} has changed"
    return None
