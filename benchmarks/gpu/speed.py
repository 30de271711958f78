"""How fast each model trains, by the product's own loop: real tokens per second, and of what the machine can do."""

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch

from benchmarks import _common
from data_pipeline.errors import KinspanError
from pretrain.config import PretrainConfig

from .materials import Bench, Row
from .ours import ON_GPU, measure_speed, settings_of, synchronize
from .report import PRODUCT

SIZE = 8192  # rows and columns of the measured matrix product
SECONDS = 3.0  # of training that a figure stands on, at least
PAIRS = 1024  # of an update
LENGTHS = {"ssp": 128, "sp": 256, "psd": 256}


def measure_machine(bench: Bench) -> Iterator[Row]:
    """What the device is, and its ceilings: a matrix product in bf16 and in fp32, and copying within its memory."""
    size = 256 if bench.quick else SIZE
    device = "cuda" if ON_GPU else "cpu"
    figures: dict[str, Any] = _common.environment()
    for name, dtype in ((PRODUCT, torch.bfloat16), ("fp32 product, TFLOP/s", torch.float32)):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        figures[name] = 2 * size**3 / _time(lambda a=a, b=b: torch.mm(a, b)) / 1e12
    block = torch.zeros(size * size * 8, device=device)
    figures["copying, TB/s, read and written"] = 2 * block.nbytes / _time(block.clone) / 1e12
    yield Row("device", figures)


def _time(work: Any) -> float:
    """Seconds of ``work``: the median of ten, after three that warm up."""
    seconds = []
    for _ in range(13):
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:])


def measure_roberta(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base over micro-batch sizes, with each of the three objectives."""
    yield from _sweep(bench, "roberta-base", {"ssp": (256, 128, 512, 64, 32), "sp": (128, 256), "psd": (128, 256)})


def measure_minilm(bench: Bench) -> Iterator[Row]:
    """MiniLM-L6."""
    yield from _sweep(bench, "minilm-l6", {"ssp": (128, 512), "sp": (256,), "psd": (256,)})


def measure_electra(bench: Bench) -> Iterator[Row]:
    """ELECTRA-base with its generator and replaced-token detection."""
    yield from _sweep(bench, "electra-base", {"ssp": (128, 256), "sp": (128,), "psd": (128,)})


def measure_modernbert(bench: Bench) -> Iterator[Row]:
    """ModernBERT-base, most of whose layers see a window."""
    yield from _sweep(bench, "modernbert-base", {"ssp": (128, 256), "sp": (128,), "psd": (128,)})


def measure_compiled(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base on SSP with each setting of the product that compiles, or captures CUDA graphs."""
    names = [f.name for f in fields(PretrainConfig) if "compile" in f.name or "cuda_graph" in f.name]
    if not names:
        yield Row("compiled, with CUDA graphs", {"": "not built: no such setting"})
    for name in names:
        yield from _sweep(bench, "roberta-base", {"ssp": (128, 256)}, **{name: True})


def _sweep(bench: Bench, name: str, sizes: dict[str, Iterable[int]], **more: Any) -> Iterator[Row]:
    """A row per objective and micro-batch size, each a run of its own; one that memory is short for says so."""
    for objective, micros in sizes.items():
        for micro in [4] if bench.quick else micros:
            settings = settings_of(
                bench,
                name,
                objective=objective,
                max_length=32 if bench.quick else LENGTHS[objective],
                global_batch_size=4 if bench.quick else PAIRS,
                micro_batch_size=micro,
                log_steps=1 if bench.quick else 4,
                **more,
            )
            flags = "".join(f", --{flag}" for flag in more)
            what = f"{objective.upper()} at {settings['max_length']}, micro-batches of {micro} pairs{flags}"
            try:
                yield Row(what, _measure(bench, settings))
            except KinspanError as error:
                yield Row(what, {"error": str(error)})


def _measure(bench: Bench, settings: dict[str, Any]) -> dict[str, float]:
    if bench.quick:
        return measure_speed(settings, seconds=0.0, warm=1, lines=1)
    return measure_speed(settings, SECONDS)
