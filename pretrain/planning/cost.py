"""How fast training would be on a GPU, predicted from counts; benchmarks/RESULTS.md has what an H200 reached.

A micro-batch takes as long as the slower of two: the host, which starts its kernels, and the device, each of whose
kernels takes as long as its bytes need or its arithmetic. The update follows, and the ranks' collectives.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from data_pipeline.sampling.batch import Batch
from pretrain.batches import to_tensors
from pretrain.modeling import attention

from .trace import Kernel, fuse, trace_kernels


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet: dense bf16 TFLOP/s, TB/s of its memory, and GB/s that a ring of GPUs of its kind reaches."""

    tflops: float
    memory: float
    network: float


GPUS = {"A100": Gpu(312, 2.0, 200), "H100": Gpu(989, 3.35, 200), "H200": Gpu(989, 4.8, 200)}
# Assumed: shares of the data sheet that large products and copies reach, and what a kernel takes to begin
PRODUCTS, COPIES, BEGIN = 0.6, 0.85, 2e-6
EAGER, COMPILED = 25e-6, 8e-6  # seconds in which the host starts a kernel, of its own operator and of a compiled graph
UPDATE_KERNELS, UPDATE_BYTES = 34, 72  # of an update in bf16 with ZeRO 1, counted; the bytes are per parameter
LATENCY, COLLECTIVES = 100e-6, 6  # of a collective, and how many an update has
SENT = 10  # bytes per parameter and update: gradients in fp32 twice, weights in bf16 once


@dataclass(frozen=True)
class Work:
    """A micro-batch's kernels forward and backward, as they are and compiled, of so many tokens."""

    tokens: int
    eager: list[Kernel]
    compiled: list[Kernel]


def shape_batch(lengths: np.ndarray, per_pair: int, masked_share: float, draws: bool = False) -> Batch:
    """A batch of sequences of these lengths ``[n * per_pair]``, which holds nothing worth reading."""
    tokens, pairs = int(lengths.sum()), len(lengths) // per_pair
    masked = int(tokens * masked_share)
    of_tokens, of_pairs = np.full(tokens, 5, np.int32), np.zeros(pairs, np.int8)
    return Batch(
        input_ids=of_tokens,
        token_type_ids=np.zeros_like(of_tokens),
        position_ids=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        masked_positions=np.arange(masked),
        masked_labels=np.zeros(masked, np.int64),
        noise=np.zeros(masked if draws else 0),
        labels=of_pairs,
        kinds=of_pairs,
        part=of_pairs.astype(np.int16),
        index=np.arange(pairs),
        groups=np.zeros((0, 2), np.int64),
    )


def count_work(model: Any, batch: Batch) -> Work:
    """Traces a micro-batch of bf16 through a model on torch's meta device, as a GPU would run it."""
    lengths = np.diff(batch.starts).astype(float)
    squares = float((lengths**2).sum())
    for encoder in model.encoders:
        encoder.config._attn_implementation = attention.NAME
    model = model.to(torch.bfloat16).train()
    inputs = to_tensors(batch, torch.device("meta"))
    with _fused_dropout(), trace_kernels(lambda query: 4.0 * squares * query.shape[1] * query.shape[2]) as trace:
        loss, *_ = model(**inputs, scales={loss.name: 1.0 for loss in model.losses})
        loss.backward()
    model.zero_grad()
    return Work(batch.num_tokens, trace.kernels, fuse(trace.kernels))


@contextmanager
def _fused_dropout() -> Iterator[None]:
    """On a GPU dropout is one kernel, where other devices take several."""
    plain = nn.functional.dropout

    def drop(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, training)[0] if training and p else x

    nn.functional.dropout = drop  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.dropout = plain


def time_host(kernels: Iterable[Kernel], compiled: bool) -> float:
    """Seconds in which the host starts the kernels of a micro-batch."""
    return sum(kernel.count for kernel in kernels) * (COMPILED if compiled else EAGER)


def time_device(kernels: Iterable[Kernel], gpu: Gpu) -> float:
    """Seconds in which a GPU runs them."""
    copying, multiplying = gpu.memory * 1e12 * COPIES, gpu.tflops * 1e12 * PRODUCTS
    return sum(max(k.bytes / copying, k.flops / multiplying) + BEGIN * k.count for k in kernels)


def predict_update(
    work: Work, gpu: Gpu, compiled: bool, parameters: int, micro_batches: float = 1, ranks: int = 1
) -> float:
    """Seconds of an update of bf16 with ZeRO 1 and so many micro-batches of each rank, each as large as ``work``."""
    kernels = work.compiled if compiled else work.eager
    passes = micro_batches * max(time_host(kernels, compiled), time_device(kernels, gpu))
    update = max(UPDATE_KERNELS * EAGER, UPDATE_BYTES * parameters / ranks / (gpu.memory * 1e12 * COPIES))
    if ranks == 1:
        return passes + update
    sent = SENT * parameters * (ranks - 1) / ranks / (gpu.network * 1e9)
    return passes + update + sent + COLLECTIVES * LATENCY
