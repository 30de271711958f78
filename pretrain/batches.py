"""A global batch's share for each rank, cut into micro-batches and made ahead of time by threads."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from pretrain.runtime.layout import Layout


def batch_of_step(step: int, left_out: Sequence[Sequence[int]]) -> int:
    """The number of the global batch that a step trains on: its own, or a later one where batches are left out."""
    for first, last in sorted(left_out, key=lambda batches: batches[0]):
        if step >= first:
            step += last - first + 1
    return step


class Feeder:
    """The micro-batches of one rank, step after step, made ahead by ``num_workers`` threads.

    ``waited`` adds up the seconds that the training loop stood still for data. What comes out does not depend
    on the number of threads: step ``k`` is a function of ``k``, and of the ``left_out`` batches, first and last each.
    """

    def __init__(
        self,
        stream: PairStream,
        layout: Layout,
        rank: int,
        first_step: int,
        num_workers: int,
        left_out: Sequence[Sequence[int]] = (),
    ) -> None:
        self.stream, self.layout, self.rank, self.left_out = stream, layout, rank, left_out
        self.waited = 0.0
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="batches")
        self._next = first_step
        self._pending: deque[Future[list[Batch | None]]] = deque()
        for _ in range(num_workers + 1):
            self._submit()

    def _submit(self) -> None:
        self._pending.append(self._pool.submit(self._make, self._next))
        self._next += 1

    def _make(self, step: int) -> list[Batch | None]:
        first = batch_of_step(step, self.left_out) * self.layout.size
        spans = self.layout.micro_batches(self.rank)
        return [self.stream.batch(first + a, b - a) if b > a else None for a, b in spans]

    def next(self) -> list[Batch | None]:
        """The next step's micro-batches; None for an empty one."""
        began = time.perf_counter()
        batches = self._pending.popleft().result()
        self.waited += time.perf_counter() - began
        self._submit()
        return batches

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def to_tensors(batch: Batch, device: torch.device) -> dict[str, Any]:
    """A batch as the model's inputs; copies to a GPU do not wait."""
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
    if device.type == "cuda":
        arrays = {name: a.pin_memory().to(device, non_blocking=True) for name, a in arrays.items()}
    longest = int((batch.starts[1:] - batch.starts[:-1]).max())
    return {**arrays, "max_length": longest}


def mean_tokens(stream: PairStream, pairs: int = 20_000) -> float:
    """Mean tokens of a pair, over the first ones."""
    pairs = min(pairs, stream.epoch_pairs)
    return stream.batch(0, pairs).num_tokens / pairs
