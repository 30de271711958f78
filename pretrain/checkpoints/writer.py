"""Writes checkpoints that are whole or absent: first in a folder of another name, which is renamed at the end.

step-00000100/
    manifest.json        written last: size in bytes and SHA-256 of every other file
    state.json           the loop's own state: step, tokens, sums that are not logged yet, ...
    weights.safetensors  the full fp32 weights, which is all that a release needs
    engine/              DeepSpeed's files: the parameters, and each rank's shard of the optimizer
"""

import json
import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from data_pipeline.core.errors import quote_error
from data_pipeline.core.files import sync
from pretrain.engine import ranks

from .capture import BASE, capture, find_base, full_weights
from .manifest import describe_file, write_manifest
from .reader import get_step, list_checkpoints

log = logging.getLogger(__name__)
Files = dict[str, dict[str, Any]]


class Writer:
    """Writes the checkpoints of a run, ``folder/step-N``, one at a time and by all ranks together.

    No older checkpoint is touched before the new one is whole. Where it cannot be written its files are removed and the
    run goes on; ``finish`` says why.

    keep:       this many of the newest checkpoints stay
    stays:      whether the checkpoint of a step stays too
    background: training goes on while a thread writes from copies in host memory
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
        self.metadata: dict[str, str] = {}  # of the file of weights
        # Unique per run, so that a leftover rank of a killed run cannot write into our partial checkpoint
        self.suffix = ranks.broadcast_from_rank_0(lambda: f".{secrets.token_hex(3)}.tmp")
        if rank == 0:
            for leftover in folder.glob("step-*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)

    def save(self, engine: Any, state: dict[str, Any]) -> None:
        """Writes ``folder/step-N``, N being ``state["step"]``; returns as soon as ``engine`` may train on.

        All ranks call it. ``state``: of the training loop, which ``load_checkpoint`` returns later
        """
        self.join()
        captured = capture(engine, copied=self.background)
        weights = full_weights(engine)
        base = find_base(engine.module)
        self.metadata = {"format": "pt", **({BASE: base} if base else {})}
        if not self.background:
            return self._write(captured, weights, state)
        self.thread = threading.Thread(target=self._write_behind, args=(captured, weights, state), daemon=True)
        self.thread.start()

    def join(self) -> None:
        """Waits until the thread has written its checkpoint."""
        if self.thread:
            self.thread.join()
            self.thread = None

    def finish(self) -> str | None:
        """Waits until all is written. Returns what went wrong with the last checkpoint, or None."""
        self.join()
        return self.failure

    def _write_behind(self, *captured: Any) -> None:
        try:
            self._write(*captured)
        except Exception as error:  # another rank has died; the training loop will notice that, too
            self.failure = f"rank {self.rank}: {error}"

    def _write(self, captured: dict[str, Any], weights: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        partial = self.folder / f"step-{state['step']:08d}{self.suffix}"
        try:
            mine: Files | str = self._write_files(partial, captured, weights, state)
        except Exception as error:  # of any type: torch raises RuntimeError on a full disk
            mine = f"rank {self.rank}: {quote_error(error)}"
        results = ranks.gather(mine, "writer")
        failures = [result for result in results if isinstance(result, str)]
        failure = None
        if self.rank == 0 and not failures:
            files = {name: entry for result in results if isinstance(result, dict) for name, entry in result.items()}
            failure = self._seal(partial, files, state["step"])
        failures += [text for text in ranks.gather(failure, "writer") if text]
        self.failure = "; ".join(failures) or None
        if self.failure and self.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            step, failure = state["step"], self.failure
            log.warning("the checkpoint of step %d could not be written: training goes on (%s)", step, failure)

    def _write_files(
        self, partial: Path, captured: dict[str, Any], weights: dict[str, torch.Tensor], state: dict[str, Any]
    ) -> Files:
        names = []
        for name, value in captured.items():
            with _naming(partial / name):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                torch.save(value, partial / name)
            names.append(name)
        if self.rank == 0:
            with _naming(partial / "weights.safetensors"):
                partial.mkdir(parents=True, exist_ok=True)
                save_file(weights, str(partial / "weights.safetensors"), metadata=self.metadata)
            with _naming(partial / "state.json"):
                (partial / "state.json").write_text(json.dumps(state))
            names += ["weights.safetensors", "state.json"]
        return {name: describe_file(partial / name) for name in names}

    def _seal(self, partial: Path, files: Files, step: int) -> str | None:
        """Makes a partial checkpoint a whole one, and removes those that need not stay. Returns what went wrong, if
        anything."""
        final = self.folder / f"step-{step:08d}"
        try:
            for name, entry in files.items():  # another machine's files may have gone to another disk
                if not (partial / name).exists() or (partial / name).stat().st_size != entry["bytes"]:
                    return f"{name} of another rank is not in {partial.parent}, which all machines must share"
            write_manifest(partial, files)
            shutil.rmtree(final, ignore_errors=True)  # it is damaged: otherwise the run would have resumed from it
            partial.replace(final)
            sync(self.folder)
        except OSError as error:
            return f"rank 0: {error.filename or partial} cannot be written: {quote_error(error)}"
        for old in _find_stale(self.folder, step, self.keep, self.stays):
            shutil.rmtree(old, ignore_errors=True)
        return None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Makes an error of writing say which file it was, and which disk is full: libraries of tensors say neither."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{path} cannot be written: {quote_error(error)}") from error


def _find_stale(folder: Path, step: int, keep: int, stays: Callable[[int], bool]) -> list[Path]:
    """Returns the checkpoints to remove once that of ``step`` is whole; later ones are damaged."""
    checkpoints = list_checkpoints(folder)
    earlier = [p for p in checkpoints if get_step(p) <= step]
    older = [p for p in earlier[keep:] if not stays(get_step(p))]
    return [p for p in checkpoints if p not in earlier] + older
