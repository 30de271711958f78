"""Forward passes over examples of like length, packed, so that no padding is computed."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from data_pipeline.core.progress import show_progress
from pretrain.engine.device import refuse_out_of_memory
from pretrain.engine.stop import interrupt_if_asked
from pretrain.engine.watch import note_place

from .encode import EncodedPairs, EncodedTexts, group_by_length

BATCH_TOKENS = {"cuda": 65536, "cpu": 2048}  # per forward pass; on a CPU, more would overflow the cache

PackedForward = Callable[..., torch.Tensor]  # takes what ``pack`` returns, gives an output per example


def score_pairs(
    ranker: PackedForward, pairs: EncodedPairs, device: torch.device, what: str = "scoring", precision: str = "fp32"
) -> np.ndarray:
    """Returns ``ranker``'s score of every pair, ``[N]`` float64. Arguments and errors are those of ``run_batches``."""
    scores = torch.zeros(len(pairs.lengths), dtype=torch.float64, device=device)
    run_batches(ranker, pairs, np.arange(len(pairs.lengths)), scores, what, precision)
    return scores.cpu().numpy()


@torch.inference_mode()
def run_batches(
    ranker: PackedForward,
    encoded: EncodedPairs | EncodedTexts,
    numbers: np.ndarray,
    out: torch.Tensor,
    what: str,
    precision: str = "fp32",
) -> None:
    """Runs ``ranker`` over these examples, split over ranks, and writes example i's output to row i of ``out``.

    All ranks make equally many forward passes, as ZeRO 3 needs, and get the complete ``out``; it must be zero before.
    With the precision "bf16", autocast over fp32 weights is faster but rounds.
    """
    device = out.device
    batches = list(group_by_length(encoded.lengths, BATCH_TOKENS[device.type], numbers))
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    rounds = range(0, len(batches), size)
    bar = show_progress(what, "passes", rounds, quiet=rank > 0 or len(rounds) <= 20, leave=False)
    with torch.autocast(device.type, torch.bfloat16, precision == "bf16"):  # around all: weights are rounded once
        for first in bar:
            rows = batches[min(first + rank, len(batches) - 1)]
            note_place(f"{what}, pass {first // size + 1} of {len(rounds)}")
            interrupt_if_asked()
            examples = f"{len(rows)} examples of up to {encoded.lengths[rows].max()} tokens"
            with refuse_out_of_memory(f"out of memory with {examples}: lower --max_length"):
                outputs = ranker(**encoded.pack(rows, device))
            if first + rank < len(batches):
                out[torch.from_numpy(rows).to(device)] = outputs.to(out.dtype)
    if size > 1:
        dist.all_reduce(out)
