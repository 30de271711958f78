"""Resuming with another number of ranks, or on a GPU what a processor began, by way of DeepSpeed's universal
checkpoint.

Under ZeRO each rank's file holds its share of the optimizer, in the order of the parameters. The universal checkpoint
holds whole parameters and moments. It is made beside the checkpoints when a run is resumed, and removed as soon as it
is loaded.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from data_pipeline.core.errors import KinspanError
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import load_universal_checkpoint, write_universal_checkpoint
from pretrain.engine.engine import puts_odd_sizes_last

from .capture import TAG, find_base

FOLDER = "universal.tmp"
OPTIMIZER_FILES = "*zero_pp_rank_*_optim_states.pt"  # ZeRO 0 writes none


def convert_to_universal(checkpoint: Path, world: int, rank: int) -> Path | None:
    """The universal form of a verified checkpoint, made by rank 0, or None where ``world`` ranks load it as it is: as
    many as wrote it, with the parameters in the same order.

    All ranks call it, before the engine takes memory. The checkpoint itself is never changed. Raises KinspanError on
    all ranks where the conversion fails.
    """
    state = json.loads((checkpoint / "state.json").read_text())
    written, same_order = state["world_size"], state.get("odd_sizes_last", False) == puts_odd_sizes_last()
    folder = checkpoint.parent / FOLDER
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # a conversion that was killed may have left it
    if (written == world and same_order) or not any((checkpoint / TAG).glob(OPTIMIZER_FILES)):
        return None
    how = f"by {written} ranks" if written != world else "on another kind of device"
    if rank == 0:
        step = int(checkpoint.name.removeprefix("step-"))
        print(f"the checkpoint of step {step} was written {how}: converting it for {world}", flush=True)
    failure = ranks.broadcast_from_rank_0(lambda: _try_to_convert(checkpoint, folder))
    if failure:
        raise KinspanError(
            f"{checkpoint} was written {how} and could not be converted for {world}: {failure}; mend that, or go on "
            f"where it was written, with {written} ranks"
        )
    return folder


def load_universal(engine: Any, folder: Path) -> None:
    """Loads what ``convert_to_universal`` made into the engine, on all ranks, and removes the folder.

    Raises KinspanError where DeepSpeed finds nothing to load.
    """
    if not load_universal_checkpoint(engine, folder, TAG, find_base(engine.module) is not None):
        raise KinspanError(
            f"{folder} could not be loaded by DeepSpeed: start the run with as many ranks, and on the kind of device, "
            "that wrote it"
        )
    ranks.barrier()
    if engine.global_rank == 0:
        shutil.rmtree(folder, ignore_errors=True)


def _try_to_convert(checkpoint: Path, folder: Path) -> str | None:
    """Converts and compares. Returns None on success; otherwise what went wrong, with nothing left behind."""
    needed = 2 * sum(path.stat().st_size for path in (checkpoint / TAG).iterdir())  # first in pieces, then whole
    free = shutil.disk_usage(checkpoint.parent).free
    if free < needed:
        return f"that takes {needed / 1e9:.1f} GB beside it for a while, and {free / 1e9:.1f} GB are free"
    try:
        write_universal_checkpoint(checkpoint.parent, f"{checkpoint.name}/{TAG}", f"{folder.name}/{TAG}")
        failure = _find_difference(checkpoint, folder)
    except Exception as error:  # whatever it is, the other ranks are waiting to hear about it
        failure = " ".join(f"{type(error).__name__}: {error}".split())
        if shutil.disk_usage(checkpoint.parent).free < 2**20:
            failure = f"the disk is full ({failure})"  # torch only says "unexpected pos"
    if failure:
        shutil.rmtree(folder, ignore_errors=True)
    return failure


def _find_difference(checkpoint: Path, folder: Path) -> str | None:
    """Names a parameter that is not bit for bit the one in weights.safetensors: the converter itself checks nothing."""
    with safe_open(str(checkpoint / "weights.safetensors"), "pt") as weights:
        for name in weights.keys():  # noqa: SIM118
            found = torch.load(folder / TAG / "zero" / name / "fp32.pt")
            found = found["param"] if isinstance(found, dict) else found
            if not torch.equal(found.flatten(), weights.get_tensor(name).flatten()):
                return f"its {name} came out different"
    return None
