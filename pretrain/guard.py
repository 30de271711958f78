"""Losses that are not finite, and losses that leap."""

import statistics
from collections.abc import Sequence

import torch

HISTORY = 20  # lines of the log that a loss is compared with
FEWEST = 8
DEVIATIONS = 6.0  # of the lines before, from their median: for a normal spread one line in 10^9
LEAST_LEAP = 0.1  # of the median: early, when the lines hardly differ, noise is no leap


class Skips:
    """Whether updates were skipped, kept on the device until somebody reads the log anyway."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, torch.Tensor]] = []

    def add(self, step: int, skipped: torch.Tensor) -> None:
        self.unread.append((step, skipped))

    def read(self) -> list[tuple[int, bool]]:
        """Of each step since the last call, whether its update was skipped."""
        if not self.unread:
            return []
        steps, flags = zip(*self.unread, strict=True)
        self.unread = []
        return list(zip(steps, torch.stack(flags).tolist(), strict=True))


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Whether a loss leaps above those ``before``, by the median and the median absolute deviation of the last
    ``HISTORY``: one outlier among them changes neither much."""
    recent = before[-HISTORY:]
    if len(recent) < FEWEST:
        return False
    median = statistics.median(recent)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in recent)  # that of a normal distribution
    return loss > median + max(DEVIATIONS * deviation, LEAST_LEAP * abs(median))
