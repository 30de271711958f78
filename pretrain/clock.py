"""How fast training goes."""

import time
from collections.abc import Callable

import torch

from data_pipeline.sampling.batch import Batch

from .metrics import count_padding
from .step import Counted


class Clock:
    """Adds up the time and work of training steps between two lines of the log. Validation and saving do not count.

    count_flops: floating-point operations of a batch
    peak:        TFLOP/s of one device
    """

    def __init__(self, count_flops: Callable[[Batch], float], skips_padding: bool, peak: float) -> None:
        self.count_flops, self.skips_padding, self.peak = count_flops, skips_padding, peak
        self.waited_before = 0.0
        self._reset()

    def _reset(self) -> None:
        self.seconds = self.flops = self.imbalance = 0.0
        self.tokens = self.padding = self.slots = 0

    def start(self) -> None:
        self.began = time.perf_counter()

    def stop(self, counted: Counted, sums: torch.Tensor | None = None) -> None:
        """A step has ended.

        sums: what it left on the device, which is waited for, so that the time of all its work counts
        """
        if sums is not None:
            sums.tolist()
        self.seconds += time.perf_counter() - self.began
        tokens = counted.counts["num_tokens"]
        self.tokens += tokens
        self.imbalance += tokens * counted.imbalance
        for batch in filter(None, counted.batches):
            padding, slots = count_padding(batch, self.skips_padding)
            self.flops += self.count_flops(batch)
            self.padding += padding
            self.slots += slots

    def read(self, waited: float) -> dict[str, float]:
        """The figures since the last call: tokens_per_second of all ranks, mfu_percent of this rank's device, and
        token_imbalance, the largest rank's tokens over the mean.

        waited: seconds that this rank has waited for batches since the run was started
        """
        values = {
            "tokens_per_second": self.tokens / self.seconds,
            "padding_percent": 100 * self.padding / max(self.slots, 1),
            "data_wait_percent": 100 * (waited - self.waited_before) / self.seconds,
            "mfu_percent": 100 * self.flops / self.seconds / (self.peak * 1e12),
            "token_imbalance": self.imbalance / max(self.tokens, 1),
        }
        self.waited_before = waited
        self._reset()
        return values
