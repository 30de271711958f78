"""Writes checkpoints that are complete or absent: each to a temporary folder, which is renamed at the end.

step-00000100/
    manifest.json        written last: size in bytes and SHA-256 of every other file
    state.json           the state of the loop: step, tokens, sums that are not logged yet, ...
    weights.safetensors  the full fp32 weights, which is all that a release needs
    engine/              DeepSpeed's files: the parameters, and each rank's shard of the optimizer
"""

import copy
import json
import logging
import secrets
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from data_pipeline.core.errors import quote_error
from data_pipeline.core.files import JsonObject, sync
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import Engine, capture_files
from pretrain.engine.watch import note_place

from .manifest import BASE, TAG, Files, find_base, make_entry, write_manifest
from .reader import get_step, list_checkpoints

log = logging.getLogger(__name__)


class Writer:
    """Writes the checkpoints of a run, ``folder/step-N``, one at a time and by all ranks together.

    Older checkpoints are removed once the new one is complete. If it cannot be written, its files are removed and the
    run continues; ``finish`` returns the reason.

    keep:       number of newest checkpoints to keep
    stays:      returns whether the checkpoint of a step is kept, too
    background: training continues while a thread writes from copies in host memory
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        keep: int = 1,
        stays: Callable[[int], bool] = lambda step: False,
        background: bool = False,
    ) -> None:
        self.folder, self.rank, self.keep, self.stays = folder, rank, keep, stays
        self.background = background
        self.thread: threading.Thread | None = None
        self.failure: str | None = None
        self.metadata: dict[str, str] = {}  # of weights.safetensors
        # Unique per run, so that a leftover rank of a killed run cannot write into our partial checkpoint
        self.suffix = ranks.broadcast_from_rank_0(lambda: f".{secrets.token_hex(3)}.tmp")
        if rank == 0:
            for leftover in folder.glob("step-*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)

    def save(self, engine: Engine, state: JsonObject) -> None:
        """Writes ``folder/step-N``, N = ``state["step"]``, on all ranks; returns when ``engine`` may train on."""
        self.join()
        base, copies = find_base(engine.module), dict[object, torch.Tensor]()
        captured = capture_files(engine, TAG, without_frozen=base is not None)
        if self.background:
            captured = {name: _copy_to_host(state, copies) for name, state in captured.items()}
        weights = full_weights(engine)
        self.metadata = {"format": "pt", **({BASE: base} if base else {})}
        if not self.background:
            return self._write(captured, weights, state)
        self.thread = threading.Thread(target=self._write_in_thread, args=(captured, weights, state), daemon=True)
        self.thread.start()

    def join(self) -> None:
        """Waits until the thread has written its checkpoint."""
        if self.thread:
            note_place("the checkpoint before", untimed=True)
            self.thread.join()
            self.thread = None

    def finish(self) -> str | None:
        """Waits until all is written. Returns what went wrong with the last checkpoint, or None."""
        self.join()
        return self.failure

    def _write_in_thread(self, *captured: Any) -> None:
        try:
            self._write(*captured)
        except Exception as error:  # another rank has died, which the training loop will notice, too
            self.failure = f"rank {self.rank}: {error}"

    def _write(self, captured: JsonObject, weights: dict[str, torch.Tensor], state: JsonObject) -> None:
        folder = self.folder / f"step-{state['step']:08d}{self.suffix}"
        try:
            local_result: Files | str = self._write_files(folder, captured, weights, state)
        except Exception as error:  # of any type: torch raises RuntimeError on a full disk
            local_result = f"rank {self.rank}: {quote_error(error)}"
        results = ranks.gather(local_result, "writer")
        failures = [result for result in results if isinstance(result, str)]
        failure = None
        if self.rank == 0 and not failures:
            files = {name: entry for result in results if isinstance(result, dict) for name, entry in result.items()}
            failure = self._seal(folder, files, state["step"])
        failures += [text for text in ranks.gather(failure, "writer") if text]
        self.failure = "; ".join(failures) or None
        if self.failure and self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            step, failure = state["step"], self.failure
            log.warning("the checkpoint of step %d could not be written: training goes on (%s)", step, failure)

    def _write_files(
        self, folder: Path, captured: JsonObject, weights: dict[str, torch.Tensor], state: JsonObject
    ) -> Files:
        writes: dict[str, Callable[[Path], object]] = {k: partial(torch.save, value) for k, value in captured.items()}
        if self.rank == 0:
            writes["weights.safetensors"] = lambda path: save_file(weights, str(path), metadata=self.metadata)
            writes["state.json"] = lambda path: path.write_text(json.dumps(state))
        for name, write in writes.items():
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write(folder / name)
            except Exception as error:  # torch and safetensors name neither the file nor the full disk
                full = "the disk is full: " if shutil.disk_usage(self.folder).free < 2**20 else ""
                raise RuntimeError(f"{folder / name} cannot be written: {full}{quote_error(error)}") from error
        return {name: make_entry(folder / name) for name in writes}

    def _seal(self, folder: Path, files: Files, step: int) -> str | None:
        """Completes a checkpoint by its manifest and name, and removes old ones; returns a failure or None."""
        final = self.folder / f"step-{step:08d}"
        try:
            for name, entry in files.items():  # another machine may have written to another disk
                if not (folder / name).exists() or (folder / name).stat().st_size != entry["bytes"]:
                    return f"{name} of another rank is not in {folder.parent}, which all machines must share"
            write_manifest(folder, files)
            shutil.rmtree(final, ignore_errors=True)  # it is damaged: otherwise the run would have resumed from it
            folder.replace(final)
            sync(self.folder)
        except OSError as error:
            return f"rank 0: {error.filename or folder} cannot be written: {quote_error(error)}"
        for old in _find_stale(self.folder, step, self.keep, self.stays):
            shutil.rmtree(old, ignore_errors=True)
        return None


def _find_stale(folder: Path, step: int, keep: int, stays: Callable[[int], bool]) -> list[Path]:
    """Returns the checkpoints to remove once that of ``step`` is complete; later ones are damaged."""
    checkpoints = list_checkpoints(folder)
    earlier = [p for p in checkpoints if get_step(p) <= step]
    older = [p for p in earlier[keep:] if not stays(get_step(p))]
    return [p for p in checkpoints if p not in earlier] + older


def _copy_to_host(value: Any, copies: dict[object, torch.Tensor]) -> Any:
    """Copies nested values; a tensor that occurs twice is copied once. ``copies``: those made so far"""
    if isinstance(value, torch.Tensor):
        key = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if key not in copies:
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((k, _copy_to_host(v, copies)) for k, v in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copy_to_host(v, copies) for v in value)
    return copy.deepcopy(value)


def full_weights(engine: Engine) -> dict[str, torch.Tensor]:
    """Returns on rank 0 every trained parameter in fp32, from the master copy if any. All ranks call it."""
    if has_master_copy := engine.zero_optimization():
        from deepspeed.utils import safe_get_full_fp32_param  # the import takes seconds, and logs
    has_base, weights = find_base(engine.module) is not None, {}
    for name, parameter in engine.module.named_parameters():
        if has_base and not parameter.requires_grad:
            continue
        full = safe_get_full_fp32_param(parameter) if has_master_copy else None
        full = parameter if full is None else full
        if not ranks.is_distributed() or dist.get_rank() == 0:
            copied = full.detach().to("cpu", torch.float32, copy=True)
            weights[name] = copied.reshape(getattr(parameter, "ds_shape", parameter.shape)).contiguous()
    return weights
