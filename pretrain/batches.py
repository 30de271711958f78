"""Makes each rank's share of the global batches ahead of time, cut into micro-batches."""

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

# Seconds after which a thread that makes batches hands Python's lock to the one that starts a GPU's kernels. Python's
# own 5 ms cost MiniLM-L6 an eighth of its speed (benchmarks/RESULTS.md)
SWITCH = 5e-5
ON_PROCESSOR = 32  # pairs
ROOM = 0.15  # of the free memory, left for messages between ranks and for what the allocator loses
TRIED = (4, 12)  # pairs
ALIGNED = 16  # bytes: where each array begins, so that it may be read as numbers of any type


def make_micro_batches(stream: PairStream, layout: Layout, rank: int, batch: int) -> list[Batch | None]:
    """Returns the rank's micro-batches of a global batch, of near-equal tokens; None for an empty one."""
    start, end = 0, layout.size
    if layout.world > 1:
        start, end = layout.deal(stream.count_tokens(batch * layout.size, layout.size))[rank]
    if start == end:
        return [None] * layout.accumulation
    share = stream.batch(batch * layout.size + start, end - start)
    return [share.cut(a, b) if b > a else None for a, b in layout.cut(share.lengths)]


class Feeder:
    """Makes the micro-batches of a rank, step after step up to ``end``, by threads ahead of time.

    waited: seconds that the training loop has waited for batches
    """

    def __init__(
        self,
        stream: PairStream,
        layout: Layout,
        rank: int,
        first_step: int,
        num_workers: int,
        end: int | None = None,
    ) -> None:
        self.stream, self.layout, self.rank = stream, layout, rank
        self.waited, self.end = 0.0, end
        device = torch.cuda.current_device() if torch.cuda.is_available() else None  # which is each thread's own
        start = None if device is None else partial(torch.cuda.set_device, device)
        self._switch = sys.getswitchinterval()
        if device is not None:
            sys.setswitchinterval(SWITCH)
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="batches", initializer=start)
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
        """Returns the next step's micro-batches; None in place of an empty one. An empty list after the last step."""
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
        sys.setswitchinterval(self._switch)


@dataclass(frozen=True)
class PinnedBatch(Batch):
    """A batch whose arrays also lie one after another, at ``places``, in a pinned ``buffer`` of bytes."""

    buffer: torch.Tensor
    places: dict[str, int]


def pin(batch: Batch) -> PinnedBatch:
    """Copies a batch into pinned memory, in the thread that makes it and not in the one that launches kernels."""
    places, end = {}, 0
    arrays = {name: array for name, array in batch.arrays.items() if name != "groups"}
    for name, array in arrays.items():
        places[name] = end
        end += -(-array.nbytes // ALIGNED) * ALIGNED
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    whole = buffer.numpy()
    for name, array in arrays.items():
        whole[places[name] : places[name] + array.nbytes] = array.view(np.uint8)
    return PinnedBatch(**batch.arrays, buffer=buffer, places=places)


def to_tensors(batch: Batch, device: torch.device) -> Inputs:
    """Returns a batch as a model's inputs, without ``groups``. Copying to a GPU does not wait for it."""
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items() if name != "groups"}
    if device.type != "cpu":
        pinned = batch if isinstance(batch, PinnedBatch) else pin(batch)
        whole = pinned.buffer.to(device, non_blocking=True)
        spans = {name: (place, place + arrays[name].nbytes) for name, place in pinned.places.items()}
        arrays = {name: whole[a:b].view(arrays[name].dtype) for name, (a, b) in spans.items()}
    longest = int((batch.starts[1:] - batch.starts[:-1]).max())
    return {**arrays, "max_length": longest}


def make_largest_batch(stream: PairStream, pairs: int) -> Batch:
    """Returns ``pairs`` pairs at full length; the number of masked tokens is a six-sigma upper bound."""
    length, masking, sequences = stream.max_length, stream.masking, pairs * stream.per_pair
    tokens = sequences * length
    probability = getattr(masking, "probability", 0.0)
    spread = 6 if getattr(masking, "continues", None) is None else 12
    masked = min(tokens, int(tokens * probability + spread * (tokens * probability) ** 0.5))
    return Batch(
        input_ids=np.full(tokens, stream.template.special[0][0], dtype=np.int32),
        token_type_ids=np.zeros(tokens, dtype=np.int32),
        position_ids=np.tile(np.arange(length, dtype=np.int32), sequences),
        starts=np.arange(sequences + 1, dtype=np.int32) * length,
        masked_positions=np.arange(masked, dtype=np.int64),
        masked_labels=np.zeros(masked, dtype=np.int64),
        noise=np.zeros(masked if masking is not None and masking.noise else 0),
        labels=np.zeros(pairs, dtype=np.int8),
        kinds=np.zeros(pairs, dtype=np.int8),
        part=np.zeros(pairs, dtype=np.int16),
        index=np.zeros(pairs, dtype=np.int64),
        groups=np.zeros((sequences if stream.apart else 0, 2), dtype=np.int64),
    )


def average_tokens(stream: PairStream, pairs: int = 20_000) -> float:
    """Returns the mean number of tokens in a pair, over the first ``pairs`` of the stream."""
    pairs = min(pairs, stream.epoch_pairs)
    return stream.batch(0, pairs).num_tokens / pairs


def choose_micro_batch(model: TrainedModel, stream: PairStream, precision: str, stage: int, most: int) -> int:
    """Returns the pairs of a micro-batch, up to ``most``; on a GPU as many as its memory holds. All ranks call it."""
    if not torch.cuda.is_available():
        return min(ON_PROCESSOR, most)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - trained
    fixed, _ = compute_states(trained, stage, precision, ranks.count(), frozen=frozen)
    torch.cuda.empty_cache()  # what the allocator keeps for itself would count as taken
    free, _ = torch.cuda.mem_get_info()
    fitting = fit_pairs(measure_passes(copy.deepcopy(model).to("cuda", DTYPES[precision]), stream), free - fixed, most)
    torch.cuda.empty_cache()
    return min(ranks.gather(fitting))


def fit_pairs(measure: Callable[[int], float], memory: float, most: int) -> int:
    """Returns the most pairs, from 1 to ``most``, whose pass fits into ``memory`` bytes with room.

    measure: the bytes that a pass of so many pairs takes at its peak, which two trials show to grow linearly
    """
    few, more = TRIED
    try:
        least = measure(few)
        each = (measure(more) - least) / (more - few)
    except torch.OutOfMemoryError:
        return 1
    return max(1, min(most, few + int(((1 - ROOM) * memory - least) / each)))


def measure_passes(model: TrainedModel, stream: PairStream) -> Callable[[int], float]:
    """Measures on a GPU what a forward and backward pass of full pairs takes, the model's weights included."""
    held = torch.cuda.memory_allocated() - sum(p.nbytes for p in model.parameters())  # by others in this process

    def measure(pairs: int) -> float:
        torch.cuda.reset_peak_memory_stats()
        inputs = to_tensors(make_largest_batch(stream, pairs), torch.device("cuda"))
        loss, _, outputs = model(**inputs, scales={loss.name: 0.0 for loss in model.losses})
        (loss + 0.0 * outputs.sum()).backward()
        model.zero_grad()
        return torch.cuda.max_memory_allocated() - held

    return measure
