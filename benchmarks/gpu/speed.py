"""How fast it is: the product's own loop over models and sizes, beside the Trainer of ``transformers``."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, TrainerCallback

from benchmarks import _common
from benchmarks.peers.case import SEED, Case, open_stream, split_rows
from benchmarks.peers.plain import PlainPairs
from benchmarks.peers.trainer import make_trainer
from data_pipeline.core.errors import KinspanError
from pretrain.modeling import compilation

from .bench import (
    DEVICE,
    KIT_MODELS,
    ON_GPU,
    Bench,
    Enough,
    Row,
    free,
    measure_speed,
    read_peak,
    reset_peak,
    synchronize,
)
from .report import PRODUCT

SIZE = 8192  # rows and columns of the measured matrix product
SECONDS = 3.0  # of training that a figure stands on, at least
PAIRS, FEW = 1024, 16  # of an update
LENGTH = 128
SIZES = {  # pairs of a micro-batch
    "roberta-base": (1024, 256),
    "minilm-l6": (2048, 512),
    "electra-base": (1024,),
    "modernbert-base": (1024,),
}
COMPILED = {"roberta-base": (2048, 1024), "modernbert-base": (1024,)}
PEER = ((512, "random"), (256, "random"))  # pairs of a micro-batch, and how they are drawn
WINDOW = 4  # updates of the Trainer between two looks at the clock
Rows = list[dict[str, Any]]


def measure_machine(bench: Bench) -> Iterator[Row]:
    """What the device is, and its ceilings: a matrix product in bf16 and in fp32, and copying within its memory."""
    size = 256 if bench.quick else SIZE
    figures: dict[str, Any] = _common.environment()
    for name, dtype in ((PRODUCT, torch.bfloat16), ("fp32 product, TFLOP/s", torch.float32)):
        a, b = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
        figures[name] = 2 * size**3 / _time(lambda a=a, b=b: torch.mm(a, b)) / 1e12
    block = torch.zeros(size * size * 8, device=DEVICE)
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


def sweep(bench: Bench, name: str) -> Iterator[Row]:
    """A model over micro-batch sizes."""
    for micro in SIZES[name][:1] if bench.quick else SIZES[name]:
        yield measure(bench, name, 4 if bench.quick else micro)


def measure_compiled(bench: Bench, name: str) -> Iterator[Row]:
    """A model, compiled."""
    for micro in COMPILED[name][:1] if bench.quick else COMPILED[name]:
        yield measure(bench, name, 4 if bench.quick else micro, compile=ON_GPU)


def measure_layers(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base, compiled layer by layer."""
    with mock.patch.object(compilation, "BY_LAYER", {"roberta"}):
        yield measure(bench, "roberta-base", 4 if bench.quick else 2048, compile=ON_GPU)


def measure_host(bench: Bench) -> Iterator[Row]:
    """Updates of so few pairs that a GPU waits for the host."""
    for name in ("roberta-base",) if bench.quick else ("roberta-base", "minilm-l6"):
        yield measure(bench, name, FEW, pairs=FEW)


def measure(bench: Bench, name: str, micro: int, pairs: int | None = None, **more: Any) -> Row:
    """A run of SSP of its own; where memory is short for it, the row says so.

    pairs: of an update; without it PAIRS or two micro-batches, if these are more
    """
    length, pairs, log_steps = (32, 4, 1) if bench.quick else (LENGTH, pairs or max(PAIRS, 2 * micro), 2)
    shape = {"global_batch_size": pairs, "micro_batch_size": min(micro, pairs), "max_length": length}
    settings = bench.settings(name, log_steps=log_steps, **shape, **more)
    flags = "".join(f", --{flag}" for flag, value in more.items() if value)
    what = f"{KIT_MODELS[name].title}, {pairs} pairs in micro-batches of {micro}{flags}"
    try:
        return Row(what, dict(measure_speed(settings, *((0.0, 1, 1) if bench.quick else (SECONDS, 2, 3)))))
    except KinspanError as error:
        return Row(what, {"error": str(error)})


def make_rows(bench: Bench) -> Rows:
    """The first pairs of the product's stream for RoBERTa-base, masked, one by one."""
    stream = open_stream(Case("roberta-base", "ssp", "fp32", bench.corpus("roberta"), 0, 0))
    batch = stream.batch(0, 64 if bench.quick else 65536)
    return [row | {"length": len(row["input_ids"])} for row in split_rows(batch)]


def train_peer(
    bench: Bench, rows: Rows, pairs: int, micro: int, sampling: str, before: Callable[[int, PlainPairs], None]
) -> None:
    """The Trainer of ``transformers`` over RoBERTa-base with the settings that suit it best (benchmarks.peers.trainer),
    ``bf16=True`` over fp32 weights, and worker processes that pad.

    before: called before each update with its number and the model, until it raises Enough
    """
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(bench.model("roberta-base"))
    # A checkpoint in fp16 would be loaded as such, so that the type is named.
    model = PlainPairs(AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32))

    class Steps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            before(state.global_step, model)

    workers = {"dataloader_num_workers": 8, "dataloader_persistent_workers": True} if ON_GPU else {}
    size = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": pairs // micro, "max_steps": 10**6}
    options = {**size, **workers, "bf16": ON_GPU, "train_sampling_strategy": sampling}
    with suppress(Enough):
        make_trainer(model, rows, Steps(), bench.scratch / "trainer", **options).train()


def measure_trainer(bench: Bench) -> Iterator[Row]:
    """The Trainer's real tokens per second on the same pairs, over micro-batch sizes and both ways of sampling."""
    rows = make_rows(bench)
    pairs, window, seconds = (4, 1, 0.0) if bench.quick else (PAIRS, WINDOW, SECONDS)
    for size, sampling in PEER[:1] if bench.quick else PEER:
        micro = 4 if bench.quick else size
        marks: list[tuple[float, int]] = []

        def before(step: int, model: PlainPairs, marks: list[tuple[float, int]] = marks) -> None:
            if step and step % window == 0:
                tokens = int(model.real_tokens)  # waits for the device
                marks.append((time.perf_counter(), tokens))
                if len(marks) > 4 and marks[-1][0] - marks[1][0] > seconds:
                    raise Enough

        what = f"the Trainer, micro-batches of {micro} pairs, {sampling}"
        reset_peak()
        try:
            train_peer(bench, rows, pairs, micro, sampling, before)
            windows = pairwise(marks[1:])  # the first warms up
            rate = statistics.median((after[1] - first[1]) / (after[0] - first[0]) for first, after in windows)
            yield Row(what, {"tokens/s": rate} | read_peak())
        except torch.OutOfMemoryError as error:
            yield Row(what, {"error": str(error).splitlines()[0]})
        free()
