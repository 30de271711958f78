"""Losses that leap."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

HISTORY = 20  # lines of the log that a loss is compared with
LEVEL = 5  # of them, the last, tell where the loss stands
FEWEST = 8
DEVIATIONS = 6.0  # for normal changes from line to line, one line in 10^9
LEAST_LEAP = 0.1  # of the loss: where lines hardly differ, noise is no leap


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Whether a loss leaps above those ``before``: above the median of the last few by more than the usual change from
    one line to the next, which a falling loss has too. Medians, so that one outlier among them changes little."""
    recent = before[-HISTORY:]
    if len(recent) < FEWEST:
        return False
    level = statistics.median(recent[-LEVEL:])
    change = 1.4826 * statistics.median(abs(b - a) for a, b in pairwise(recent))  # a normal distribution's deviation
    return loss > level + max(DEVIATIONS * change, LEAST_LEAP * abs(level))
