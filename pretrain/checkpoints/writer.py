"""Checkpoints that are whole or absent: written aside, hashed, renamed; verified before they are read.

step-00000100/
    manifest.json        written last: bytes and SHA-256 of every other file
    state.json           the loop's own state: step, tokens, sums not yet logged
    weights.safetensors  the full fp32 weights, all that a release needs
    engine/              DeepSpeed's files: its parameters and each rank's optimizer shard
"""

import json
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from data_pipeline.files import sync, write_atomically
from pretrain.runtime import ranks

from .capture import capture, full_weights
from .manifest import describe_file, write_manifest
from .reader import get_step, list_checkpoints

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
        self.suffix = ranks.broadcast_from_rank_0(lambda: f".{secrets.token_hex(3)}.tmp")
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
        everyone = ranks.gather(mine, "writer")
        wrong = [said for said in everyone if isinstance(said, str)]
        sealed = None
        if self.rank == 0 and not wrong:
            sealed = self._seal(partial, {k: v for files in everyone for k, v in files.items()}, state["step"])  # type: ignore[union-attr]
        wrong += [said for said in ranks.gather(sealed, "writer") if said]
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
        return {name: describe_file(partial / name) for name in names}

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


def _stale(folder: Path, step: int, keep: int, keep_every: int = 0) -> list[Path]:
    """Checkpoints to remove once ``step`` is whole: all but those to keep, and later ones, which were damaged."""
    found = list_checkpoints(folder)
    earlier = [p for p in found if get_step(p) <= step]
    older = [p for p in earlier[keep:] if not (keep_every and get_step(p) % keep_every == 0)]
    return [p for p in found if p not in earlier] + older
