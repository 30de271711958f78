"""Makes each rank's share of the global batches ahead of time, and cuts it into micro-batches."""

import copy
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from pretrain.engine import ranks
from pretrain.engine.device import DTYPES
from pretrain.engine.layout import Layout
from pretrain.modeling.electra import ReplacedTokenModel
from pretrain.modeling.encoder import Inputs
from pretrain.modeling.pair_model import PairModel
from pretrain.modeling.siamese.model import SiameseModel
from pretrain.planning.cost import compute_states

TrainedModel = PairModel | ReplacedTokenModel | SiameseModel

# Seconds after which a thread that makes batches releases the GIL to the one that launches GPU kernels. Python's
# default of 5 ms cost MiniLM-L6 an eighth of its speed (benchmarks/RESULTS.md)
SWITCH_INTERVAL = 5e-5
CPU_MICRO_BATCH = 32  # pairs
MEMORY_RESERVE = 0.15  # share of the free memory, for communication and fragmentation
TRIAL_SIZES = (4, 12)  # pairs
SAMPLE = 20_000  # pairs whose mean length is measured
ALIGNMENT = 16  # bytes: each array begins at a multiple, so that it can be viewed as any type


def make_micro_batches(stream: PairStream, layout: Layout, rank: int, index: int) -> list[Batch | None]:
    """Returns the rank's micro-batches of a global batch, of near-equal tokens; None for an empty one."""
    start, end = 0, layout.size
    if layout.world > 1:
        start, end = layout.deal(stream.count_tokens(index * layout.size, layout.size))[rank]
    if start == end:
        return [None] * layout.accumulation
    share = stream.batch(index * layout.size + start, end - start)
    return [share.cut(a, b) if b > a else None for a, b in layout.cut(share.lengths)]


class Feeder:
    """Makes a rank's micro-batches in threads, ahead of time, step by step up to ``end``.

    waited: seconds that the training loop has waited for batches
    """

    def __init__(
        self, stream: PairStream, layout: Layout, rank: int, first_step: int, num_workers: int, end: int | None = None
    ) -> None:
        self.stream, self.layout, self.rank = stream, layout, rank
        self.waited, self.end = 0.0, end
        device = torch.cuda.current_device() if torch.cuda.is_available() else None  # each thread must set it
        initializer = None if device is None else partial(torch.cuda.set_device, device)
        self._switch_interval = sys.getswitchinterval()
        if device is not None:
            sys.setswitchinterval(SWITCH_INTERVAL)
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="batches", initializer=initializer)
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
        batches = make_micro_batches(self.stream, self.layout, self.rank, step)
        return [batch and pin(batch) for batch in batches] if torch.cuda.is_available() else batches

    def next(self) -> list[Batch | None]:
        """Returns the next step's micro-batches, None for an empty one; after the last step an empty list."""
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
        sys.setswitchinterval(self._switch_interval)


@dataclass(frozen=True)
class PinnedBatch(Batch):
    """A batch whose arrays are also in a pinned ``buffer`` of bytes, at these ``offsets``."""

    buffer: torch.Tensor
    offsets: dict[str, int]


def pin(batch: Batch) -> PinnedBatch:
    """Copies a batch into pinned memory; called by the threads of ``Feeder``, so that training need not wait."""
    offsets, end = {}, 0
    arrays = {name: array for name, array in batch.arrays.items() if name != "groups"}
    for name, array in arrays.items():
        offsets[name] = end
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    target = buffer.numpy()
    for name, array in arrays.items():
        target[offsets[name] : offsets[name] + array.nbytes] = array.view(np.uint8)
    return PinnedBatch(**batch.arrays, buffer=buffer, offsets=offsets)


def to_tensors(batch: Batch, device: torch.device) -> Inputs:
    """Returns a batch as a model's inputs, without ``groups``; the copy to a GPU is asynchronous."""
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items() if name != "groups"}
    if device.type != "cpu":
        pinned = batch if isinstance(batch, PinnedBatch) else pin(batch)
        copied = pinned.buffer.to(device, non_blocking=True)
        spans = {name: (offset, offset + arrays[name].nbytes) for name, offset in pinned.offsets.items()}
        arrays = {name: copied[a:b].view(arrays[name].dtype) for name, (a, b) in spans.items()}
    return {**arrays, "max_length": int((batch.starts[1:] - batch.starts[:-1]).max())}


def make_largest_batch(stream: PairStream, num_pairs: int) -> Batch:
    """Returns pairs at full length; the number of masked tokens is a six-sigma upper bound."""
    length, masking, num_sequences = stream.max_length, stream.masking, num_pairs * stream.sequences_per_pair
    num_tokens = num_sequences * length
    probability = getattr(masking, "probability", 0.0)
    deviations = 6 if getattr(masking, "continues", None) is None else 12
    num_masked = min(num_tokens, int(num_tokens * probability + deviations * (num_tokens * probability) ** 0.5))
    return Batch(
        input_ids=np.full(num_tokens, stream.template.special[0][0], dtype=np.int32),
        token_type_ids=np.zeros(num_tokens, dtype=np.int32),
        position_ids=np.tile(np.arange(length, dtype=np.int32), num_sequences),
        starts=np.arange(num_sequences + 1, dtype=np.int32) * length,
        masked_positions=np.arange(num_masked, dtype=np.int64),
        masked_labels=np.zeros(num_masked, dtype=np.int64),
        noise=np.zeros(num_masked if masking is not None and masking.draws_noise else 0),
        labels=np.zeros(num_pairs, dtype=np.int8),
        kinds=np.zeros(num_pairs, dtype=np.int8),
        part=np.zeros(num_pairs, dtype=np.int16),
        index=np.zeros(num_pairs, dtype=np.int64),
        groups=np.zeros((num_sequences if stream.separate_texts else 0, 2), dtype=np.int64),
    )


def average_tokens(stream: PairStream) -> float:
    """Returns the mean number of tokens in a pair, over the first SAMPLE of the stream."""
    num_pairs = min(SAMPLE, stream.epoch_pairs)
    return stream.batch(0, num_pairs).num_tokens / num_pairs


def choose_micro_batch(model: TrainedModel, stream: PairStream, precision: str, stage: int, limit: int) -> int:
    """Returns the pairs in a micro-batch, up to ``limit``; on a GPU as many as its memory holds. All ranks call it."""
    if not torch.cuda.is_available():
        return min(CPU_MICRO_BATCH, limit)
    num_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    num_frozen = sum(p.numel() for p in model.parameters()) - num_trained
    fixed, _ = compute_states(num_trained, stage, precision, ranks.count(), frozen=num_frozen)
    torch.cuda.empty_cache()  # else memory that the allocator caches would count as used
    free, _ = torch.cuda.mem_get_info()
    size = fit_pairs(measure_passes(copy.deepcopy(model), DTYPES[precision], stream), free - fixed, limit)
    torch.cuda.empty_cache()
    return min(ranks.gather(size))


def fit_pairs(measure: Callable[[int], float], memory: float, max_pairs: int) -> int:
    """Returns how many pairs, from 1 to ``max_pairs``, fit into ``memory`` bytes with a reserve.

    The peak bytes of a pass, which ``measure`` returns, grow linearly, so two trials are enough.
    """
    few, more = TRIAL_SIZES
    try:
        few_bytes = measure(few)
        bytes_per_pair = (measure(more) - few_bytes) / (more - few)
    except torch.OutOfMemoryError:
        return 1
    return max(1, min(max_pairs, few + int(((1 - MEMORY_RESERVE) * memory - few_bytes) // bytes_per_pair)))


def measure_passes(model: TrainedModel, dtype: torch.dtype, stream: PairStream) -> Callable[[int], float]:
    """Returns a function that measures the peak bytes of a pass of full pairs on a GPU, with the model's weights."""
    others = torch.cuda.memory_allocated()  # bytes of other objects

    def measure(pairs: int) -> float:
        model.to("cuda", dtype)  # which may already take more memory than there is
        torch.cuda.reset_peak_memory_stats()
        inputs = to_tensors(make_largest_batch(stream, pairs), torch.device("cuda"))
        loss, _, outputs = model(**inputs, scales={loss.name: 0.0 for loss in model.losses})
        (loss + 0.0 * outputs.sum()).backward()
        model.zero_grad()
        return torch.cuda.max_memory_allocated() - others

    return measure
