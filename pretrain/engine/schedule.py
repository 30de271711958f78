"""The learning rate as a function of the update alone, so that checkpoints need no state of a scheduler."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from data_pipeline.core.errors import KinspanError

Shape = Literal["triangular", "wsd", "cosine", "constant"]
OPEN_ENDED = ("wsd", "constant")  # a longer run begins as a shorter one does, and so can go on from it
OPEN_ENDED_WARMUP = 50  # updates; a share of the whole would differ between the two


@dataclass(frozen=True)
class Schedule:
    """Computes the learning rate; all shapes rise linearly over the warm-up, whose first update has ``peak / warmup``.

    triangular: then falls linearly to zero (Di Liello et al., 2022, appendix B)
    cosine:     then falls to zero along half a cosine
    constant:   then stays
    wsd:        then stays, and falls to zero over the last ``decay_share`` of the updates as 1 - sqrt (Hägele et al.,
                2024, section 3)
    """

    shape: Shape
    peak: float
    warmup: int
    total: int
    decay_share: float = 0.0

    def rate(self, step: int) -> float:
        """Returns the rate of update ``step`` (0-based); the last update's is above zero."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.shape == "constant":
            return self.peak
        if self.shape == "wsd":
            return self.peak * (1 - math.sqrt(max(0, step - self.decay_start) / (self.total - self.decay_start)))
        left = max(0.0, (self.total - step) / max(1, self.total - self.warmup))
        return self.peak * (left if self.shape == "triangular" else (1 - math.cos(math.pi * left)) / 2)

    @property
    def decay_start(self) -> int:
        """Returns the first update of a wsd's decay; the end of another schedule."""
        return self.total - (math.ceil(self.decay_share * self.total) if self.shape == "wsd" else 0)


def make_schedule(
    config: Any, peak: float, total: int, warmup: int | None, what: str = "run", given: str | None = None
) -> Schedule:
    """Returns the schedule of a config with ``lr_schedule`` and ``decay_share``.

    warmup: updates; None: a tenth of all, or ``OPEN_ENDED_WARMUP``
    what:   is that long, for the message
    given:  the flag and value that the warm-up follows from, where that is not --warmup_steps

    Raises KinspanError where warm-up and decay leave no update at the peak.
    """
    if warmup is None:
        warmup = OPEN_ENDED_WARMUP if config.lr_schedule in OPEN_ENDED else total // 10
    schedule = Schedule(config.lr_schedule, peak, warmup, total, config.decay_share)
    given = given or f"--warmup_steps {warmup}"
    if total and warmup >= total:
        raise KinspanError(f"{given} is not below the {total} steps of the {what}: lower it")
    if total and warmup >= schedule.decay_start:
        raise KinspanError(
            f"{given} with --decay_share {config.decay_share:g}: the decay begins at step "
            f"{schedule.decay_start} of the {what}: lower one of them, or train for longer"
        )
    return schedule


def describe_schedule(schedule: Schedule) -> str:
    """Returns the schedule as a phrase, such as "triangular, rising over 100 updates"."""
    decay = f", falling from update {schedule.decay_start:,}" if schedule.shape == "wsd" else ""
    return f"{schedule.shape}, rising over {schedule.warmup:,} updates{decay}"
