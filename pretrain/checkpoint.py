"""Checkpoints that are whole or absent: written aside, hashed, renamed; verified before they are read.

step-00000100/
    manifest.json        written last: bytes and SHA-256 of every other file
    state.json           the loop's own state: step, tokens, sums not yet logged
    weights.safetensors  the full fp32 weights, all that a release needs
    engine/              DeepSpeed's files: its parameters and each rank's optimizer shard
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from data_pipeline.corpus import sha256_of
from data_pipeline.errors import KinspanError

TAG = "engine"


def barrier() -> None:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def save(engine: Any, state: dict[str, Any], folder: Path, keep: int, rank: int) -> None:
    """Writes ``folder/step-N`` with all ranks, N being ``state["step"]``, and removes old checkpoints.

    ``latest`` is replaced last; nothing that was good before is touched until the new one is whole.
    """
    final = folder / f"step-{state['step']:08d}"
    partial = final.with_suffix(".tmp")
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    barrier()
    engine.save_checkpoint(str(partial), tag=TAG, save_latest=False)
    weights = full_weights(engine)
    if rank == 0:
        save_file(weights, str(partial / "weights.safetensors"), metadata={"format": "pt"})
        (partial / "state.json").write_text(json.dumps(state))
    barrier()
    if rank == 0:
        _seal(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.replace(final)
        _sync(folder)
        write_atomically(folder / "latest", final.name)
        for old in _stale(folder, state["step"], keep):
            shutil.rmtree(old, ignore_errors=True)
    barrier()


def full_weights(engine: Any) -> dict[str, torch.Tensor]:
    """Every parameter in fp32 from its master copy, gathered by all ranks; tied ones once."""
    master = _master_copy if engine.zero_optimization() else (lambda parameter: None)
    weights = {}
    for name, parameter in engine.module.named_parameters():
        full = master(parameter)
        full = parameter if full is None else full
        weights[name] = full.detach().to("cpu", torch.float32).reshape(getattr(parameter, "ds_shape", parameter.shape))
        weights[name] = weights[name].clone().contiguous()
    return weights


def _master_copy(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    from deepspeed.utils import safe_get_full_fp32_param

    return safe_get_full_fp32_param(parameter)


def _seal(partial: Path) -> None:
    """Syncs every file to disk and writes the manifest, by which ``is_whole`` judges."""
    files = sorted(p for p in partial.rglob("*") if p.is_file())
    entries = {}
    for folder in {path.parent for path in files}:
        _sync(folder)
    for path in files:
        _sync(path)
        entries[path.relative_to(partial).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
    write_atomically(partial / "manifest.json", json.dumps({"files": entries}, indent=1))


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text)
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _by_step(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    found = [p for p in folder.glob("step-*") if p.suffix != ".tmp" and p.name[5:].isdigit()]
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def _stale(folder: Path, step: int, keep: int) -> list[Path]:
    """Checkpoints to remove once ``step`` is whole: all but ``keep``, and later ones, which were damaged."""
    found = _by_step(folder)
    earlier = [p for p in found if int(p.name[5:]) <= step]
    return [p for p in found if p not in earlier] + earlier[keep:]


def why_not_whole(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, by its manifest; None where every file is as it was written."""
    try:
        files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "manifest.json is missing or damaged"
    for name, entry in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"] or sha256_of(path) != entry["sha256"]:
            return f"{name} is damaged"
    return None


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each newer one that does not."""
    skipped: list[str] = []
    for checkpoint in _by_step(folder):
        wrong = why_not_whole(checkpoint)
        if wrong is None:
            return checkpoint, skipped
        skipped.append(f"{checkpoint}: {wrong}")
    return None, skipped


def agreed_newest(folder: Path) -> tuple[Path | None, list[str]]:
    """``newest`` as rank 0 finds it, for all ranks: they must resume from one checkpoint."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return newest(folder)
    found = [newest(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    assert found[0]
    return found[0]


def load(engine: Any, checkpoint: Path, world: int) -> dict[str, Any]:
    """Puts a verified checkpoint into the engine and returns the loop's state.

    Raises KinspanError where the number of ranks is another than it was written by.
    """
    state = json.loads((checkpoint / "state.json").read_text())
    if state["world_size"] != world:
        raise KinspanError(
            f"{checkpoint} was written by {state['world_size']} ranks, this run has {world}: start it with "
            f"{state['world_size']} ranks, or with another --output_dir"
        )
    with _restricted_unpickling():
        path, _ = engine.load_checkpoint(str(checkpoint), tag=TAG)
    if path is None:
        raise KinspanError(f"{checkpoint} could not be loaded by DeepSpeed: remove it to go on from an older one")
    return state


def _allowed_classes() -> list[Any]:
    """What DeepSpeed's optimizer shards hold beside tensors and plain values, in every ZeRO stage."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


@contextmanager
def _restricted_unpickling() -> Iterator[None]:
    """DeepSpeed's pickles may make tensors and a few named classes, nothing else.

    DeepSpeed asks torch for unrestricted loading; the variable overrules it.
    """
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        with torch.serialization.safe_globals(_allowed_classes()):
            yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
