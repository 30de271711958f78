"""Checkpoints that are whole or absent: written aside, hashed, renamed; verified before they are read.

step-00000100/
    manifest.json        written last: bytes and SHA-256 of every other file
    state.json           the loop's own state: step, tokens, sums not yet logged
    weights.safetensors  the full fp32 weights, all that a release needs
    engine/              DeepSpeed's files: its parameters and each rank's optimizer shard
"""

import copy
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from data_pipeline.errors import KinspanError
from pretrain.runtime import ranks

from .manifest import entry, sync, why_not_whole, write_atomically, write_manifest

TAG = "engine"
Files = dict[str, dict[str, Any]]


class Writer:
    """Writes the checkpoints of a run, ``folder/step-N``, with all ranks; one at a time.

    keep:       the newest so many stay, and
    keep_every: those whose step is a multiple of it, if not 0
    background: training goes on while a thread writes what was copied to host memory
    tell:       told, on rank 0, of a checkpoint that could not be written

    ``latest`` is replaced last; nothing that was good before is touched until the new one is whole. Where it cannot be
    written (a full disk, say) what there is of it is removed, and the run goes on: ``finish`` says why.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        keep: int = 1,
        keep_every: int = 0,
        background: bool = False,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.rank, self.keep, self.keep_every = folder, rank, keep, keep_every
        self.background, self.tell = background, tell
        self.thread: threading.Thread | None = None
        self.failure: str | None = None
        # Of its own, so that a late rank of a dead run writes nowhere that matters
        self.suffix = ranks.from_rank_0(lambda: f".{secrets.token_hex(3)}.tmp")
        if rank == 0:
            for leftover in folder.glob("step-*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)

    def save(self, engine: Any, state: dict[str, Any]) -> None:
        """Called by all ranks. Returns when ``engine`` may train on, N being ``state["step"]``."""
        self.join()
        captured = capture(engine, copied=self.background)
        weights = full_weights(engine)
        if not self.background:
            return self._write(captured, weights, state)
        self.thread = threading.Thread(target=self._write_behind, args=(captured, weights, state), daemon=True)
        self.thread.start()

    def join(self) -> None:
        if self.thread:
            self.thread.join()
            self.thread = None

    def finish(self) -> str | None:
        """Waits until all is written; what went wrong with the last checkpoint, if anything."""
        self.join()
        return self.failure

    def _write_behind(self, *what: Any) -> None:
        try:
            self._write(*what)
        except Exception as error:  # another rank died, which the training loop will find out
            self.failure = f"rank {self.rank}: {error}"

    def _write(self, captured: dict[str, Any], weights: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        partial = self.folder / f"step-{state['step']:08d}{self.suffix}"
        try:
            mine: Files | str = self._write_files(partial, captured, weights, state)
        except Exception as error:  # torch's zip writer makes a full disk a RuntimeError
            mine = f"rank {self.rank}: {' '.join(str(error).split())[:300]}"
        everyone = ranks.gathered(mine, "writer")
        wrong = [said for said in everyone if isinstance(said, str)]
        sealed = None
        if self.rank == 0 and not wrong:
            sealed = self._seal(partial, {k: v for files in everyone for k, v in files.items()}, state["step"])  # type: ignore[union-attr]
        wrong += [said for said in ranks.gathered(sealed, "writer") if said]
        self.failure = "; ".join(wrong) or None
        if self.failure and self.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            self.tell(
                f"the checkpoint of step {state['step']} could not be written ({self.failure}): training goes on, and "
                "the one before stays; make room before the next"
            )

    def _write_files(
        self, partial: Path, captured: dict[str, Any], weights: dict[str, torch.Tensor], state: dict[str, Any]
    ) -> Files:
        """This rank's files, safe on the disk."""
        names = []
        for name, value in captured.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save(value, partial / name)
            names.append(name)
        if self.rank == 0:
            partial.mkdir(parents=True, exist_ok=True)
            save_file(weights, str(partial / "weights.safetensors"), metadata={"format": "pt"})
            (partial / "state.json").write_text(json.dumps(state))
            names += ["weights.safetensors", "state.json"]
        return {name: entry(partial / name) for name in names}

    def _seal(self, partial: Path, files: Files, step: int) -> str | None:
        final = self.folder / f"step-{step:08d}"
        try:
            for name, facts in files.items():  # from other machines: are they in this folder?
                if not (partial / name).exists() or (partial / name).stat().st_size != facts["bytes"]:
                    return f"{name} of another rank is not in {partial.parent}, which all machines must share"
            write_manifest(partial, files)
            shutil.rmtree(final, ignore_errors=True)  # was damaged, or the run would have begun after it
            partial.replace(final)
            sync(self.folder)
            write_atomically(self.folder / "latest", final.name)
        except OSError as error:
            return f"rank 0: {error}"
        for old in _stale(self.folder, step, self.keep, self.keep_every):
            shutil.rmtree(old, ignore_errors=True)
        return None


def capture(engine: Any, copied: bool) -> dict[str, Any]:
    """What this rank's engine would write to disk, by file name within the checkpoint.

    copied: in host memory of its own, so that training may go on
    """
    keeper = _Keeper()
    before, engine.checkpoint_engine = engine.checkpoint_engine, keeper
    engine._copy_recovery_script = lambda folder: None  # a program, where there should be data
    try:
        engine.save_checkpoint(".", tag=TAG, save_latest=False)
    finally:
        engine.checkpoint_engine = before
    seen: dict[Any, torch.Tensor] = {}
    return {name: _on_host(state, seen) if copied else state for name, state in keeper.states.items()}


class _Keeper:
    """Stands in for DeepSpeed's checkpoint engine, and keeps what that would write."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    def save(self, state_dict: Any, path: str) -> None:
        self.states[Path(path).as_posix()] = state_dict

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def create(self, info: Any) -> None:
        pass

    def commit(self, info: Any) -> None:
        pass

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        return True


def _on_host(value: Any, seen: dict[Any, torch.Tensor]) -> Any:
    """A copy of nested values; a tensor that stands there twice is one in the copy too."""
    if isinstance(value, torch.Tensor):
        place = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if place not in seen:
            seen[place] = value.detach().to("cpu", copy=True)
        return seen[place]
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((k, _on_host(v, seen)) for k, v in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(_on_host(v, seen) for v in value)
    return copy.deepcopy(value)


def full_weights(engine: Any) -> dict[str, torch.Tensor]:
    """Every parameter in fp32 from its master copy, gathered by all ranks, for rank 0 alone; tied ones once."""
    master = _master_copy if engine.zero_optimization() else (lambda parameter: None)
    weights = {}
    for name, parameter in engine.module.named_parameters():
        full = master(parameter)
        full = parameter if full is None else full
        if not ranks.several() or dist.get_rank() == 0:
            host = full.detach().to("cpu", torch.float32, copy=True)
            weights[name] = host.reshape(getattr(parameter, "ds_shape", parameter.shape)).contiguous()
    return weights


def _master_copy(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    from deepspeed.utils import safe_get_full_fp32_param

    return safe_get_full_fp32_param(parameter)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[5:])


def by_step(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    return sorted((p for p in folder.glob("step-*") if p.name[5:].isdecimal()), key=step_of, reverse=True)


def _stale(folder: Path, step: int, keep: int, keep_every: int = 0) -> list[Path]:
    """Checkpoints to remove once ``step`` is whole: all but those to keep, and later ones, which were damaged."""
    found = by_step(folder)
    earlier = [p for p in found if step_of(p) <= step]
    older = [p for p in earlier[keep:] if not (keep_every and step_of(p) % keep_every == 0)]
    return [p for p in found if p not in earlier] + older


def drop_after(folder: Path, step: int) -> None:
    """Removes the checkpoints, or releases, of later steps: the run went back, and they are none of its."""
    for checkpoint in by_step(folder):
        if step_of(checkpoint) > step:
            shutil.rmtree(checkpoint, ignore_errors=True)


def newest(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, up to a step if given, and a line for each newer one that does not."""
    skipped: list[str] = []
    for checkpoint in by_step(folder):
        if last_step is not None and step_of(checkpoint) > last_step:
            continue
        wrong = why_not_whole(checkpoint)
        if wrong is None:
            return checkpoint, skipped
        skipped.append(f"{checkpoint}: {wrong}")
    return None, skipped


def agreed_newest(folder: Path, last_step: int | None = None) -> tuple[Path | None, list[str]]:
    """``newest`` as rank 0 finds it, for all ranks: they must resume from one checkpoint."""
    return ranks.from_rank_0(lambda: newest(folder, last_step))


def load(engine: Any, checkpoint: Path, world: int, universal: Path | None = None) -> dict[str, Any]:
    """Puts a verified checkpoint into the engine and returns the loop's state.

    universal: elastic.converted of the checkpoint, where it was written by another number of ranks under ZeRO
    """
    from .elastic import load_converted

    if universal:
        load_converted(engine, universal)
    else:
        with restricted_unpickling(), chdir(checkpoint):  # DeepSpeed takes [ and * in a path for wildcards
            path, _ = engine.load_checkpoint(".", tag=TAG)
        if path is None:
            raise KinspanError(f"{checkpoint} could not be loaded by DeepSpeed: remove it to go on from an older one")
    return json.loads((checkpoint / "state.json").read_text()) | {"world_size": world}


def _allowed_classes() -> list[Any]:
    """What DeepSpeed's optimizer shards hold beside tensors and plain values, in every ZeRO stage."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


@contextmanager
def restricted_unpickling() -> Iterator[None]:
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
