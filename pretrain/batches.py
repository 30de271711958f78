"""Makes each rank's share of the global batches ahead of time, cut into micro-batches."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from pretrain.runtime.layout import Layout


def find_batch(step: int, left_out: Sequence[Sequence[int]]) -> int:
    """The number of the global batch that a step trains on: the step's own, or a later one where batches are left out.

    left_out: the first and the last batch of each stretch that is left out
    """
    for first, last in sorted(left_out, key=lambda batches: batches[0]):
        if step >= first:
            step += last - first + 1
    return step


def make_micro_batches(stream: PairStream, layout: Layout, rank: int, batch: int) -> list[Batch | None]:
    """The rank's micro-batches of the global batch of this number; None in place of an empty one."""
    start, end = layout.share(rank)
    if start == end:
        return [None] * layout.accumulation
    share = stream.batch(batch * layout.size + start, end - start)
    return [share.cut(a, b) if b > a else None for a, b in layout.cut(share.lengths)]


class Feeder:
    """The micro-batches of one rank, step after step, which ``num_workers`` threads make ahead of time.

    The batches do not depend on the number of threads: those of step ``k`` are a function of ``k`` and ``left_out``
    (see ``find_batch``). ``waited`` adds up the seconds that the training loop has waited for batches. From the step
    ``end`` on there are none: nobody trains on them.
    """

    def __init__(
        self,
        stream: PairStream,
        layout: Layout,
        rank: int,
        first_step: int,
        num_workers: int,
        left_out: Sequence[Sequence[int]] = (),
        end: int | None = None,
    ) -> None:
        self.stream, self.layout, self.rank, self.left_out = stream, layout, rank, left_out
        self.waited, self.end = 0.0, end
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="batches")
        self._next = first_step
        self._pending: deque[Future[list[Batch | None]]] = deque()
        for _ in range(num_workers + 1):
            self._submit()

    def _submit(self) -> None:
        if self.end is not None and self._next >= self.end:
            return
        self._pending.append(self._pool.submit(self._make, self._next))
        self._next += 1

    def _make(self, step: int) -> list[Batch | None]:
        return make_micro_batches(self.stream, self.layout, self.rank, find_batch(step, self.left_out))

    def next(self) -> list[Batch | None]:
        """The next step's micro-batches; None in place of an empty one. An empty list after the last step."""
        if not self._pending:
            return []
        began = time.perf_counter()
        batches = self._pending.popleft().result()
        self.waited += time.perf_counter() - began
        self._submit()
        return batches

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def to_tensors(batch: Batch, device: torch.device) -> dict[str, Any]:
    """A batch as the inputs of a model, none of which reads ``groups``. Copying to a GPU does not wait for it."""
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items() if name != "groups"}
    if device.type == "cuda":
        arrays = {name: a.pin_memory().to(device, non_blocking=True) for name, a in arrays.items()}
    longest = int((batch.starts[1:] - batch.starts[:-1]).max())
    return {**arrays, "max_length": longest}


def average_tokens(stream: PairStream, pairs: int = 20_000) -> float:
    """The mean number of tokens in a pair, taken over the first ``pairs`` of the stream."""
    pairs = min(pairs, stream.epoch_pairs)
    return stream.batch(0, pairs).num_tokens / pairs
