"""``make gpu-count``: what a training step of RoBERTa-base asks of a GPU, counted on a processor in a minute.

Kernels, bytes and arithmetic are counted on torch's meta device; the host's time is measured with a model of as many
layers whose tensors are tiny; the update's waits and kernels are those of the real engine. From these the speed is
predicted, by pretrain/planning/cost.py, which has the assumptions.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from benchmarks import _common
from data_pipeline.sampling.batch import Batch
from pretrain.batches import to_tensors
from pretrain.config import PretrainConfig
from pretrain.engine import device_update
from pretrain.engine.deepspeed_compat import silence_start
from pretrain.engine.engine import build_engine, complete_settings, read_deepspeed_config, start_distributed
from pretrain.engine.layout import Layout
from pretrain.modeling import attention
from pretrain.modeling.packing import Packing
from pretrain.modeling.pair_model import PairModel, assemble
from pretrain.planning.cost import GPUS, count_work, predict_update, shape_batch, time_device
from pretrain.planning.plan import BUILT_IN
from pretrain.planning.trace import Kernel, trace_kernels
from pretrain.step import GlobalBatch, train_step

PAIRS, MICRO_BATCHES = 256, 4  # of a micro-batch, and micro-batches of an update: as `make gpu` has them
LONGEST, MEAN = 128, 94.5  # tokens of a pair of SSP on English Wikipedia
MASKED = 0.15
TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
SHOWN = ("H100", "H200")
STAGES = (("zero1", "bf16"), ("zero0", "fp32"), ("zero2", "bf16"))
TIMED = 20  # micro-batches; the fastest counts, for a busy machine


def build_model(device: str, **changes: Any) -> PairModel:
    """RoBERTa-base by its config, with fresh weights or, on the meta device, with shapes alone."""
    family, options = BUILT_IN["roberta-base"]
    config = AutoConfig.for_model(family, **options | changes, num_labels=1, pad_token_id=1)
    config._attn_implementation = attention.NAME
    with torch.device(device):
        models = [a.from_config(config) for a in (AutoModelForSequenceClassification, AutoModelForMaskedLM)]
    return assemble(*models)


def make_batch(pairs: int, longest: int, mean: float) -> Batch:
    """Pairs whose lengths spread evenly around their mean."""
    lengths = np.linspace(2 * mean - longest, longest, pairs).round().astype(np.int32)
    return shape_batch(lengths, 1, MASKED * (1 - 3 / mean))


def time_host() -> float:
    """Seconds of this processor for a micro-batch, forward and backward, in Python and torch, whatever tensors hold.

    Flash attention computes nothing meanwhile.
    """
    model = build_model("cpu", **TINY).bfloat16()
    inputs = to_tensors(make_batch(2, 16, 16.0), torch.device("cpu"))
    library, state, none = torch.library.Library("aten", "IMPL"), torch.zeros(2, dtype=torch.uint64), torch.zeros(0)
    library.impl("_flash_attention_forward", lambda q, *_, **__: (q.clone(), none, state, state, none), "CPU")
    library.impl("_flash_attention_backward", lambda grad, *_, **__: (grad.clone(),) * 3, "CPU")
    pack, seconds = Packing.of, []
    with mock.patch.object(Packing, "of", lambda *given: replace(pack(*given), bounds=None)):  # as on a GPU
        for _ in range(TIMED):
            began = time.process_time()
            model(**inputs, scales={"mlm": 1.0, "pair": 1.0})[0].backward()
            model.zero_grad()
            seconds.append(time.process_time() - began)
    library._destroy()
    return min(seconds)


def trace_update(stage: str, precision: str) -> tuple[list[Kernel], dict[str, int], int]:
    """Of the real engine with a model of tiny tensors: the kernels of adding up gradients and of the update, the waits
    of the whole step, and the number of parameters."""
    start_distributed()
    layout, settings = Layout(2, 2, 1), PretrainConfig()
    of_stage = complete_settings(read_deepspeed_config(f"ds_configs/{stage}.json"), settings, layout, precision)
    engine = build_engine(build_model("cpu", **TINY), settings, of_stage)
    batch = make_batch(2, 16, 16.0)
    counted = GlobalBatch(
        [batch], {"num_masked": batch.num_masked, "num_tokens": batch.num_tokens, "num_pairs": 2}, False
    )
    kernels: list[Kernel] = []

    def watch(plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with trace_kernels() as trace:
            out = plain(*given, **named)
        kernels.extend(trace.kernels)
        return out

    def step(number: int) -> None:
        train_step(engine, counted=counted, filler=batch, layout=layout, rank=0, seed=1, step=number)

    with mock.patch.object(device_update, "measure_norm", device_update._measure_at_once):  # as on a GPU
        step(0)  # makes Adam's moments
        with trace_kernels() as whole:
            step(1)
        for owner, name in ((engine, "step"), (engine.optimizer, "update_hp_grads")):
            if hasattr(owner, name):
                setattr(owner, name, partial(watch, getattr(owner, name)))
        step(2)
    return kernels, dict(whole.waits), sum(p.numel() for p in engine.module.parameters())


def main() -> None:
    _common.parser(__doc__).parse_args()
    silence_start()
    model = build_model("meta")
    parameters = sum(p.numel() for p in model.parameters())
    work = count_work(model, make_batch(PAIRS, LONGEST, MEAN))
    rows = []
    for name, kernels in (("eager", work.eager), ("compiled", work.compiled)):
        count = sum(kernel.count for kernel in kernels)
        traffic = sum(kernel.bytes for kernel in kernels) / work.tokens
        host = f"{1e3 * time_host():.1f}" if name == "eager" else ""
        devices = [f"{1e3 * time_device(kernels, GPUS[gpu]):.1f}" for gpu in SHOWN]
        speeds = [predict(work, gpu, name == "compiled", parameters) for gpu in SHOWN]
        rows.append([f"micro-batch, {name}", "", f"{count}", f"{traffic:,.0f}", host, *devices])
        rows[-1] += [f"{speed:,.0f}" for speed in speeds]
    waits = {}
    for stage, precision in STAGES:
        kernels, found, tiny = trace_update(stage, precision)
        waits[stage] = sum(found.values())
        each = sum(kernel.bytes for kernel in kernels) / tiny * parameters / MICRO_BATCHES / work.tokens
        rows.append([f"update, {stage}, {precision}", f"{waits[stage]}", f"{len(kernels)}", f"{each:,.0f}", *[""] * 5])
    header = [f"{PAIRS} pairs, {MICRO_BATCHES} an update", "waits", "kernels", "bytes/token", "host ms"]
    _common.print_table([*header, *(f"{gpu} {unit}" for unit in ("ms", "tokens/s") for gpu in SHOWN)], rows)
    of = ", ".join(f"{gpu} {speed:,.0f}" for gpu, speed in zip(SHOWN, speeds, strict=True))
    print(f"waits per update: {waits['zero1']}, predicted tokens/s: {of}")


def predict(work: Any, gpu: str, compiled: bool, parameters: int) -> float:
    """Tokens per second of one GPU."""
    return MICRO_BATCHES * work.tokens / predict_update(work, GPUS[gpu], compiled, parameters, MICRO_BATCHES)


if __name__ == "__main__":
    _common.run(main)
