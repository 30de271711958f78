"""What a step costs beside its arithmetic: idle time, synchronisations, memory, checkpoints."""

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from benchmarks._common import ROOT

from .bench import ON_GPU, Bench, Enough, Row, free, synchronize, train_here
from .speed import make_rows, train_peer

WARM, PROFILED = 8, 4  # updates
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
GROUPS = (  # of kernels, by words in their names; the first that fits
    ("attention", ("flash", "fmha", "attention")),
    ("matrix products", ("gemm", "cutlass", "nvjet", "xmma", "cublas")),
    ("optimizer and norm", ("adam", "multi_tensor", "lpnorm")),
    ("layer norm", ("layer_norm", "layernorm", "gammabeta")),
    ("softmax and loss", ("softmax", "nll", "argmax")),
    ("embedding and gathers", ("embedding", "index", "gather", "scatter", "sort")),
    ("dropout", ("dropout",)),
    ("copies", ("memcpy", "memset", "copy")),
)
TOP = 8  # kernels that are named


def _make_settings(bench: Bench, pairs: int, micro: int, **more: Any) -> dict[str, Any]:
    """RoBERTa-base on SSP, with so few lines of log that none falls into what is looked at."""
    length, pairs, micro = (32, 4, 2) if bench.quick else (128, pairs, micro)
    shape = {"max_length": length, "global_batch_size": pairs, "micro_batch_size": micro}
    rare = dict.fromkeys(("log_steps", "max_steps", "save_steps"), 10**6)
    return bench.settings("roberta-base", **{**shape, **rare, **more})


def profile_steps(bench: Bench) -> Iterator[Row]:
    """Where the time of an update goes on the device, and what in it makes the host wait for the device."""
    warm, profiled = (1, 1) if bench.quick else (WARM, PROFILED)
    profiler = profile(activities=[ProfilerActivity.CUDA if ON_GPU else ProfilerActivity.CPU])
    waits: Counter[str] = Counter()

    def before(step: int) -> None:
        if step == warm:
            synchronize()
            profiler.start()
        if step == warm + profiled:
            synchronize()
            profiler.stop()
            warn_of_waits(True)
        if step == warm + 2 * profiled:
            raise Enough

    with count_waits(waits):
        train_here(_make_settings(bench, 1024, 128), before)
        warn_of_waits(False)
    events = list(profiler.events() or [])
    yield Row(f"{profiled} updates of 1024 pairs in micro-batches of 128", describe_device(events, profiled))
    calls = Counter(event.name for event in events if event.name in WAITING)
    # one cudaDeviceSynchronize of the profiled updates, at their end, is this script's own
    figures: dict[str, Any] = {f"{name} per update": calls[name] / profiled for name in WAITING}
    figures |= {f"at {place}": f"{number / profiled:g} per update" for place, number in waits.most_common(TOP)}
    yield Row("the host waits for the device", figures, not waits if ON_GPU else None)


def warn_of_waits(wanted: bool) -> None:
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("warn" if wanted else "default")


@contextmanager
def count_waits(waits: Counter[str]) -> Iterator[None]:
    """Within it, each warning of a synchronising call counts for the line of code that made it."""

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "synchroniz" in str(message):
            path = Path(filename)
            place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else "/".join(path.parts[-3:])
            waits[f"{place}:{lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield


def describe_device(events: Iterable[Any], updates: int) -> dict[str, Any]:
    """Idle share, shares of the groups of kernels, and the kernels that take most time."""
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        return {"": "no kernels: there is no GPU here"}
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:  # streams overlap
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - spans[0][0]  # in microseconds, as all of these
    groups: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for event in kernels:
        taken, low = event.time_range.end - event.time_range.start, event.name.lower()
        group = next((g for g, words in GROUPS if any(word in low for word in words)), "the rest, elementwise")
        groups[group] += taken
        names[event.name] += taken
    total = sum(groups.values())
    figures: dict[str, Any] = {"idle %": 100 * (1 - busy / whole), "update, ms": whole / updates / 1e3}
    figures["kernels per update"] = len(kernels) / updates
    figures |= {f"{group} %": 100 * taken / total for group, taken in groups.most_common()}
    return figures | {f"kernel {name[:90]} %": 100 * taken / total for name, taken in names.most_common(TOP)}


def compare_memory(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base, micro-batches of 32 pairs of at most 128 tokens: the peak of an update, and what of it is not
    weights, gradients and moments; the product's and the Trainer's."""
    updates, micro = (1, 4) if bench.quick else (6, 32)
    ours = measure_memory(lambda stop: train_here(_make_settings(bench, 32, 32), stop), updates)
    yield Row("the product", ours)
    free()
    rows = make_rows(bench, "ssp")

    def train(stop: Callable[[int], None]) -> None:
        train_peer(bench, rows, micro, micro, "random", lambda step, model: stop(step))

    theirs = measure_memory(train, updates)
    yield Row("the Trainer", theirs)
    if ON_GPU:
        ratio = ours["activations, GB"] / theirs["activations, GB"]
        yield Row("the product's activations by the Trainer's", {"ratio": ratio})


def measure_memory(train: Callable[[Callable[[int], None]], Any], updates: int) -> dict[str, float]:
    """GB at the peak of updates, and where the optimizer has just stepped: weights, gradients and moments alone.

    train: trains, and calls what it is given with the number of each update before it
    """
    state: list[int] = []
    others = torch.cuda.memory_allocated() if ON_GPU else 0  # that a run before has left

    def before(step: int) -> None:
        if step == 2 and ON_GPU:
            torch.cuda.reset_peak_memory_stats()
            state.clear()
        if step >= 2 + updates:
            raise Enough

    hook = register_optimizer_step_post_hook(lambda *_: state.append(torch.cuda.memory_allocated() if ON_GPU else 0))
    try:
        train(before)
    finally:
        hook.remove()
    peak, kept = torch.cuda.max_memory_allocated() - others if ON_GPU else 0, max(state, default=0) - others
    return {"peak, GB": peak / 1e9, "weights and optimizer, GB": kept / 1e9, "activations, GB": (peak - kept) / 1e9}


def measure_checkpoints(bench: Bench) -> Iterator[Row]:
    """How long training stands for a checkpoint of RoBERTa-base, and what it costs in all, written before training
    goes on and behind it."""
    half = 4 if bench.quick else 40  # updates before the checkpoint, and after it until the run ends
    for behind in (False, True):
        begins: list[float] = []

        def mark(step: int, begins: list[float] = begins) -> None:
            synchronize()
            begins.append(time.perf_counter())

        settings = _make_settings(bench, 1024, 128, max_steps=2 * half, save_steps=half, async_checkpoints=behind)
        train_here(settings, mark)
        took = [b - a for a, b in pairwise(begins)]
        step = statistics.median(took[1 : half - 1])
        folder = max((Path(settings["output_dir"]) / "checkpoints").glob("step-*"))
        figures = {
            "training stands, s": took[half - 1] - step,
            "costs, s": sum(took[half - 1 :]) - step * len(took[half - 1 :]),
            "an update, s": step,
            "GB": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9,
        }
        yield Row("written behind" if behind else "training waits", figures)
