"""Runs of the product: in this process, watched step by step, or by its own command."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks._common import ROOT
from data_pipeline.errors import KinspanError
from pretrain.config import PretrainConfig

from .materials import ELECTRA_GENERATOR, KIT_MODELS, Bench
from .report import MODEL_FLOPS

ON_GPU = torch.cuda.is_available()
UNIT_TFLOPS = 1000.0  # what the log's utilisation is taken of, which says the TFLOP/s themselves
LOGGED = {  # figures of the product's log, and how they are shown
    "tokens_per_second": "tokens/s",
    "mfu_percent": MODEL_FLOPS,
    "data_wait_percent": "data wait %",
    "padding_percent": "padding in attention %",
}
_RUNS = count()


class Enough(Exception):
    """Ends a run that has shown what it was run for."""


@dataclass
class Watched:
    """What a run's steps are told to, around each call of ``pretrain.step.train_step``; all of it may raise Enough.

    before, after: called with the number of the step since the run was started
    """

    before: Callable[[int], None] = lambda step: None
    after: Callable[[int], None] = lambda step: None
    began: float = field(default=0.0, init=False)  # of the first step, by time.monotonic()

    def wrap(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        numbers = count()

        def watched(*arguments: Any, **named: Any) -> Any:
            step = next(numbers)
            self.began = self.began or time.monotonic()
            self.before(step)
            result = train_step(*arguments, **named)
            self.after(step)
            return result

        return watched


def synchronize() -> None:
    """Waits until the GPU, where there is one, has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()


def settings_of(bench: Bench, name: str, **more: Any) -> dict[str, Any]:
    """Settings of a run of a model of KIT_MODELS, without validation: what ``more`` does not say otherwise."""
    settings: dict[str, Any] = {
        "corpus": bench.corpus(KIT_MODELS[name].corpus),
        "model": bench.model_with_weights(name),
        "output_dir": str(bench.scratch / f"run-{next(_RUNS)}"),
        "precision": "bf16" if ON_GPU else "fp32",
        "eval_pairs": 0,
        "keep_checkpoints": 1,
        "num_workers": 4 if ON_GPU else 1,
        "peak_tflops": UNIT_TFLOPS,
        "stall_minutes": 2.0,
    }
    if KIT_MODELS[name].family == "electra":
        settings["generator"] = bench.model_with_weights(ELECTRA_GENERATOR)
    return {**settings, **more}


def train_here(settings: dict[str, Any], watched: Watched) -> list[dict[str, Any]]:
    """Runs the product in this process until its last step or Enough; returns the training lines of its log.

    Raises KinspanError as the product does, and leaves the memory of the device as it was.
    """
    import pretrain.run

    step = watched.wrap(pretrain.run.train_step)
    try:
        with mock.patch("pretrain.run.train_step", step):
            pretrain.run.pretrain(PretrainConfig(**settings))
    except Enough:
        pass
    finally:
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()
    return read_lines(settings)


def read_lines(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The training lines of a run's log."""
    path = Path(settings["output_dir"]) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["split"] == "train"]


def measure_speed(settings: dict[str, Any], seconds: float, warm: int = 2, lines: int = 3) -> dict[str, float]:
    """Figures of a run, as medians over the lines of its log after the first ``warm``: at least ``lines`` of them, and
    as many as ``seconds`` give. Its last step is never come to."""
    log_steps = settings["log_steps"]

    def stop(step: int) -> None:
        if step >= (warm + lines) * log_steps and time.monotonic() - watched.began > seconds:
            raise Enough

    watched = Watched(before=stop)
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    settled = train_here({**settings, "max_steps": 10**6, "save_steps": 10**6}, watched)[warm:]
    median = {name: statistics.median(line[name] for line in settled) for name in LOGGED}
    figures = {shown: median[name] for name, shown in LOGGED.items()}
    figures[MODEL_FLOPS] *= UNIT_TFLOPS / 100
    if ON_GPU:
        figures["peak, GB"] = torch.cuda.max_memory_allocated() / 1e9
    return figures


def start_command(settings: dict[str, Any], **variables: str) -> subprocess.Popen:
    """Starts launch/pretrain.py with these settings, by the flags of its help."""
    flags = []
    for name, value in settings.items():
        flags += [f"--{name}"] if value is True else [] if value is False else [f"--{name}={value}"]
    command = [sys.executable, str(ROOT / "launch/pretrain.py"), *flags]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **variables})


def finish(process: subprocess.Popen) -> None:
    """Waits for a command. Raises KinspanError where it failed."""
    if status := process.wait():
        raise KinspanError(f"{' '.join(process.args[1:3])} ... ended with status {status}")  # type: ignore[index]
