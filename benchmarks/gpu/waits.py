"""Where an update keeps the host waiting for the device, and how long the device idles."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import extract_stack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks._common import ROOT

from .bench import ON_GPU, Bench, Enough, Row, synchronize, train_here

WARM, PROFILED = 8, 4  # updates
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
TOP = 8  # kernels, and lines of code, that are named


def count_waits(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base in bf16 with ZeRO 1, eight micro-batches an update: what the profiler sees, then what torch warns
    of."""
    warm, profiled = (1, 1) if bench.quick else (WARM, PROFILED)
    length, pairs, micro = (32, 4, 2) if bench.quick else (128, 1024, 128)
    shape = {"max_length": length, "global_batch_size": pairs, "micro_batch_size": micro}
    rare = dict.fromkeys(("log_steps", "max_steps", "save_steps"), 10**6)  # no line of the log falls into it
    profiler = profile(activities=[ProfilerActivity.CUDA if ON_GPU else ProfilerActivity.CPU])
    waits: Counter[str] = Counter()

    def warn(wanted: bool) -> None:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("warn" if wanted else "default")

    def before(step: int, engine: Any) -> None:
        if step == warm:
            synchronize()
            profiler.start()
        if step == warm + profiled:
            synchronize()
            profiler.stop()
            warn(True)
        if step == warm + 2 * profiled:
            warn(False)
            raise Enough

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if str(message).startswith("called a synchronizing"):
            own = [frame for frame in extract_stack()[:-1] if Path(frame.filename).is_relative_to(ROOT)]
            place = f"{Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno}, " if own else ""
            waits[f"{place}{filename}:{lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        train_here(bench.settings("roberta-base", deepspeed_config="ds_configs/zero1.json", **shape, **rare), before)
    events = list(profiler.events() or [])
    yield Row(f"{profiled} updates of {pairs // micro} micro-batches", describe_device(events, profiled))
    done = max((e.time_range.end for e in events if e.device_type == torch.autograd.DeviceType.CUDA), default=0.0)
    within = [event for event in events if event.time_range.end < done]  # later come our wait and the profiler's
    calls = Counter(event.name for event in within if event.name in WAITING)
    figures: dict[str, Any] = {f"{name} per update": calls[name] / profiled for name in WAITING}
    figures |= {f"at {place}": f"{number / profiled:g} per update" for place, number in waits.most_common(TOP)}
    yield Row("the host waits for the device", figures, not (waits or calls.total()) if ON_GPU else None)


def describe_device(events: Iterable[Any], updates: int) -> dict[str, Any]:
    """The share of time without a kernel, and the kernels that take most time."""
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        return {"": "no kernels: there is no GPU here"}
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:  # streams overlap
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - spans[0][0]  # in microseconds, as all of these
    names: Counter[str] = Counter()
    for event in kernels:
        names[event.name[:90]] += event.time_range.end - event.time_range.start
    figures: dict[str, Any] = {"idle %": 100 * (1 - busy / whole), "update, ms": whole / updates / 1e3}
    figures["kernels per update"] = len(kernels) / updates
    return figures | {f"kernel {name} %": 100 * taken / names.total() for name, taken in names.most_common(TOP)}
