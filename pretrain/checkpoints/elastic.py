"""Going on with another number of ranks, by way of DeepSpeed's universal checkpoint.

Under ZeRO each rank's file holds that rank's share of the optimizer, so it fits one number of ranks only. The universal
checkpoint holds whole parameters and moments, of which ranks of any number take their shares. It is made when a run
is resumed, beside the checkpoints, and is gone once it was loaded: what is on disk before and after is the same.
"""

import io
import json
import logging
import shutil
from argparse import Namespace
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from data_pipeline.errors import KinspanError
from pretrain.runtime import ranks

from .capture import TAG
from .unpickling import restricted_unpickling

FOLDER = "universal.tmp"
OPTIMIZER_FILES = "*zero_pp_rank_*_optim_states.pt"  # which ZeRO 0 does not write


def convert_to_universal(checkpoint: Path, world: int, rank: int) -> Path | None:
    """The universal form of a verified checkpoint, made by rank 0, or None where ``world`` ranks load it as it is.

    All ranks call it, before the engine takes memory. Raises KinspanError on all of them where it cannot be made; the
    checkpoint is never touched.
    """
    written = json.loads((checkpoint / "state.json").read_text())["world_size"]
    folder = checkpoint.parent / FOLDER
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a conversion that was killed
    if written == world or not any((checkpoint / TAG).glob(OPTIMIZER_FILES)):
        return None
    if rank == 0:
        step = int(checkpoint.name.removeprefix("step-"))
        print(f"the checkpoint of step {step} was written by {written} ranks: converting it for {world}", flush=True)
    failure = ranks.broadcast_from_rank_0(lambda: _why_not_converted(checkpoint, folder))
    if failure:
        raise KinspanError(
            f"{checkpoint} was written by {written} ranks and could not be converted for {world}: {failure}; mend "
            f"that, or start the run with {written} ranks"
        )
    return folder


def load_universal(engine: Any, folder: Path) -> None:
    """Puts what ``converted`` made into the engine, with all ranks, and removes it.

    Two things that DeepSpeed leaves wrong are put right. Under ZeRO 3 all groups come back with the settings of the
    first, weight decay included, and with *one* tensor as their count of steps, so that each update would count once
    for each group. And the count comes back on the host, while torch's fused AdamW wants it beside the parameters.

    Raises KinspanError where DeepSpeed finds nothing to load.
    """
    optimizer = engine.optimizer
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    deepspeed_logger = logging.getLogger("DeepSpeed")
    level = deepspeed_logger.level
    deepspeed_logger.setLevel(logging.ERROR)  # it warns of a model parallelism that nobody asked for
    engine._config.load_universal_checkpoint = True  # "load_universal" of its settings: for this one load
    try:
        with restricted_unpickling(), chdir(folder):
            path, _ = engine.load_checkpoint(".", tag=TAG)
    finally:
        engine._config.load_universal_checkpoint = False
        deepspeed_logger.setLevel(level)
    if path is None:
        raise KinspanError(f"{folder} could not be loaded by DeepSpeed: start the run with as many ranks as before")
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    for parameter, state in optimizer.state.items():
        state["step"] = state["step"].to(parameter.device, copy=True)
    ranks.barrier()
    if engine.global_rank == 0:
        shutil.rmtree(folder, ignore_errors=True)


def _why_not_converted(checkpoint: Path, folder: Path) -> str | None:
    """Converts; None once it is done and right, else what went wrong, with nothing left behind."""
    needed = 2 * sum(path.stat().st_size for path in (checkpoint / TAG).iterdir())  # in pieces, then whole
    free = shutil.disk_usage(checkpoint.parent).free
    if free < needed:
        return f"that takes {needed / 1e9:.1f} GB beside it for a while, and {free / 1e9:.1f} GB are free"
    try:
        _convert(checkpoint, folder)
        wrong = _first_difference(checkpoint, folder)
    except Exception as error:  # of any kind, and the other ranks wait to hear of it
        wrong = " ".join(f"{type(error).__name__}: {error}".split())
        if shutil.disk_usage(checkpoint.parent).free < 2**20:
            wrong = f"the disk is full ({wrong})"  # torch says "unexpected pos"
    if wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def _convert(checkpoint: Path, folder: Path) -> None:
    """Runs DeepSpeed's converter, silently and in this process: others would not know what may be unpickled."""
    from deepspeed.checkpoint import ds_to_universal

    arguments = Namespace(
        input_folder=f"{checkpoint.name}/{TAG}",  # relative: it makes regular expressions of its paths
        output_folder=f"{folder.name}/{TAG}",
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,  # of pipelines and tensor parallelism, of which there is none
    )
    silence = io.StringIO()
    with chdir(checkpoint.parent), restricted_unpickling(), redirect_stdout(silence), redirect_stderr(silence):
        ds_to_universal.main(arguments)


def _first_difference(checkpoint: Path, folder: Path) -> str | None:
    """Names a parameter that is not, bit for bit, the one in weights.safetensors: the converter checks nothing."""
    with safe_open(str(checkpoint / "weights.safetensors"), "pt") as weights:
        for name in weights.keys():  # noqa: SIM118
            found = torch.load(folder / TAG / "zero" / name / "fp32.pt")
            found = found["param"] if isinstance(found, dict) else found
            if not torch.equal(found.flatten(), weights.get_tensor(name).flatten()):
                return f"its {name} came out different"
    return None
