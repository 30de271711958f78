"""The random numbers of a forward pass, as a function of (seed, step, micro-batch or pair)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from .cpu.dropout import Masks, hash_key, use_masks


@contextmanager
def decide_dropout(seed: int, step: int, micro_batch: int, pairs: np.ndarray) -> Iterator[None]:
    """Decides the dropout of the forward pass within.

    micro_batch: its number over all ranks, by which torch's generator is seeded, and all dropout of a GPU
    pairs:       see cpu.dropout.Masks, which decide on a processor
    """
    torch.manual_seed(hash_key(seed, "dropout", step, micro_batch) >> 1)
    if torch.cuda.is_available():
        yield
        return
    with use_masks(Masks(seed, step, pairs)):
        yield
