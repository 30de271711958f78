"""Measures how fast the product's loop and the Trainer's are, and counts what the host waits for."""

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer
from transformers import AutoConfig, AutoModelForMaskedLM, TrainerCallback

from benchmarks import _common
from benchmarks.peers.case import SEED, Case, open_stream, split_rows
from benchmarks.peers.trainings import PlainPairs, make_trainer
from data_pipeline.core.errors import KinspanError

from .bench import DEVICE, ON_GPU, Bench, Enough, Row, measure_speed, synchronize, train_here

SIZE = 8192  # rows and columns of the measured matrix product
SECONDS = 3.0  # of training that a figure stands on, at least
PAIRS, FEW, LENGTH = 1024, 16, 128  # of an update; where the device waits for the host; tokens of a pair
WINDOW = 4  # updates of the Trainer between two looks at the clock
WARM, PROFILED = 8, 4  # updates
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def measure_machine(bench: Bench) -> Iterator[Row]:
    """Measures the device's ceilings: a matrix product in bf16 and in fp32, and copying within its memory."""
    size = 256 if bench.quick else SIZE
    figures: dict[str, Any] = _common.environment()
    for name, dtype in (("bf16 product, TFLOP/s", torch.bfloat16), ("fp32 product, TFLOP/s", torch.float32)):
        a, b = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
        figures[name] = 2 * size**3 / _time(lambda a=a, b=b: torch.mm(a, b)) / 1e12
    block = torch.zeros(size * size * 8, device=DEVICE)
    figures["copying, TB/s, read and written"] = 2 * block.nbytes / _time(block.clone) / 1e12
    yield Row("device", figures)


def _time(work: Any) -> float:
    """Returns the median seconds of ``work``."""
    return Timer("work()", globals={"work": work}).blocked_autorange(min_run_time=0.5).median


def measure(bench: Bench, name: str, how: str, *sizes: str) -> Iterator[Row]:
    """Measures a model on SSP, eager or compiled, over micro-batch sizes. Where memory is short, the row says so.

    Two micro-batches make an update, or PAIRS pairs; FEW pairs make one alone, whose GPU waits for the host.
    """
    for micro in map(int, sizes[:1] if bench.quick else sizes):
        pairs = micro if micro == FEW else max(PAIRS, 2 * micro)
        what = f"{name}, {pairs} pairs in micro-batches of {micro}, {how}"
        length, pairs, micro, log_steps = (32, 4, 4, 1) if bench.quick else (LENGTH, pairs, micro, 2)
        shape = {"global_batch_size": pairs, "micro_batch_size": micro, "max_length": length, "log_steps": log_steps}
        settings = bench.settings(name, **shape, compile=how == "compile" and ON_GPU)
        try:
            yield Row(what, measure_speed(settings, *((0, 1, 1) if bench.quick else (SECONDS, 2, 3))))
        except KinspanError as error:
            yield Row(what, {"error": str(error)})


def measure_trainer(bench: Bench) -> Iterator[Row]:
    """Measures the Trainer with the settings that suit it best: workers pad, fp32 weights under ``bf16=True``."""
    stream = open_stream(Case("roberta-base", "ssp", "fp32", bench.corpus("roberta"), 0, 0))
    batch = stream.batch(0, 64 if bench.quick else 65536)
    rows = [row | {"length": len(row["input_ids"])} for row in split_rows(batch)]
    config = AutoConfig.from_pretrained(bench.model("roberta-base"))
    for size, sampling in ((512, "random"), (256, "group_by_length")):
        pairs, micro = (4, 4) if bench.quick else (PAIRS, size)
        torch.manual_seed(SEED)
        model = PlainPairs(AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32))
        look = Look(model, *((1, 0.0) if bench.quick else (WINDOW, SECONDS)))
        options = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": pairs // micro}
        options |= {"dataloader_num_workers": 8, "dataloader_persistent_workers": True} if ON_GPU else {}
        options |= {"max_steps": 10**6, "bf16": ON_GPU, "train_sampling_strategy": sampling}
        with suppress(Enough):
            make_trainer(model, rows, look, bench.scratch / sampling, **options).train()
        windows = pairwise(look.marks[1:])  # the first warms up
        rate = statistics.median((after[1] - first[1]) / (after[0] - first[0]) for first, after in windows)
        yield Row(f"the Trainer, micro-batches of {size} pairs, {sampling}", {"tokens/s": rate})


class Look(TrainerCallback):
    """Notes the clock and the tokens every ``window`` updates, and ends the training after ``seconds``."""

    def __init__(self, model: PlainPairs, window: int, seconds: float) -> None:
        self.model, self.window, self.seconds = model, window, seconds
        self.marks: list[tuple[float, int]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step and state.global_step % self.window == 0:
            tokens = int(self.model.real_tokens)  # waits for the device
            self.marks.append((time.perf_counter(), tokens))
            if len(self.marks) > 4 and self.marks[-1][0] - self.marks[1][0] > self.seconds:
                raise Enough


def count_waits(bench: Bench) -> Iterator[Row]:
    """Counts waits by the profiler, and by torch's warnings, in updates of eight micro-batches of RoBERTa-base."""
    warm, profiled, length, pairs = (1, 1, 32, 4) if bench.quick else (WARM, PROFILED, LENGTH, PAIRS)
    shape = {"max_length": length, "global_batch_size": pairs, "micro_batch_size": max(1, pairs // 8)}
    rare = dict.fromkeys(("log_steps", "max_steps", "save_steps"), 10**6)  # no line of the log falls into it
    profiler = profile(activities=[ProfilerActivity.CUDA if ON_GPU else ProfilerActivity.CPU])

    def before(step: int, engine: Any) -> None:
        if step == warm:
            synchronize()
            profiler.start()
        if step == warm + profiled:
            synchronize()
            profiler.stop()
        if ON_GPU and step in (warm + profiled, warm + 2 * profiled):
            torch.cuda.set_sync_debug_mode("warn" if step == warm + profiled else "default")
        if step == warm + 2 * profiled:
            raise Enough

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_here(bench.settings("roberta-base", **shape, **rare), before)
    waits = Counter(f"{w.filename}:{w.lineno}" for w in caught if str(w.message).startswith("called a synchronizing"))
    events = list(profiler.events() or [])
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        yield Row("updates", {"": "no kernels: there is no GPU here"})
        return
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:  # streams overlap
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - spans[0][0]  # in microseconds, as all of these
    idle, kernels_each = 100 * (1 - busy / whole), len(kernels) / profiled
    figures = {"idle %": idle, "update, ms": whole / profiled / 1e3, "kernels": kernels_each}
    yield Row(f"{profiled} updates of 8 micro-batches", figures)
    calls = Counter(e.name for e in events if e.name in WAITING and e.time_range.end < reached)  # later comes our wait
    yield Row("the host waits for the device", {**calls, **waits}, not (waits or calls))
