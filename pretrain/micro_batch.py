"""How many pairs a forward pass takes where nobody says it: few on a processor, on a GPU what its memory holds."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from data_pipeline.sampling.stream import PairStream
from pretrain.engine import ranks
from pretrain.engine.device import DTYPES
from pretrain.planning.memory import compute_states

from .batches import make_largest_batch, to_tensors

ON_PROCESSOR = 32  # pairs
ROOM = 0.15  # of the free memory, left for messages between ranks and for what the allocator loses
TRIED = (4, 12)  # pairs


def choose_micro_batch(model: Any, stream: PairStream, precision: str, stage: int, most: int) -> int:
    """The pairs of a micro-batch, the same on all ranks, which all call it. ``most``: the largest share of a rank"""
    if not torch.cuda.is_available():
        return min(ON_PROCESSOR, most)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - trained
    fixed = compute_states(trained, stage, precision, ranks.count(), frozen=frozen).on_gpu
    torch.cuda.empty_cache()  # what the allocator keeps for itself would count as taken
    free, _ = torch.cuda.mem_get_info()
    fitting = fit_pairs(measure_passes(copy.deepcopy(model).to("cuda", DTYPES[precision]), stream), free - fixed, most)
    torch.cuda.empty_cache()
    return min(ranks.gather(fitting))


def fit_pairs(measure: Callable[[int], float], memory: float, most: int) -> int:
    """The most pairs whose pass fits into so many bytes with room, from 1 to ``most``.

    measure: the bytes that a pass of so many pairs takes at its peak

    Each further pair is taken to cost as much as those between the two numbers that are tried. Where these do not fit
    it is 1: trying the largest batch then says more.
    """
    few, more = TRIED
    try:
        least = measure(few)
        each = (measure(more) - least) / (more - few)
    except torch.OutOfMemoryError:
        return 1
    return max(1, min(most, few + int(((1 - ROOM) * memory - least) / each)))


def measure_passes(model: Any, stream: PairStream) -> Callable[[int], float]:
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
