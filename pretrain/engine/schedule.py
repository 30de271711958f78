"""The settings that pre-training and fine-tuning share, and the learning rate as a function of the update alone."""

import math
from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, ABOVE_0_BELOW_1, NOT_BELOW_0, setting

Shape = Literal["triangular", "wsd", "cosine", "constant"]
OPEN_ENDED = ("wsd", "constant")  # a longer run begins like a shorter one, and so can continue it
OPEN_ENDED_WARMUP = 50  # updates; a share of all updates would depend on the length


@dataclass
class OptimizerSettings:
    """Sets how weights are updated."""

    GROUP = "optimisation"

    lr_schedule: Shape = setting("triangular")
    """After the warm-up the rate falls linearly to zero (triangular), falls along a cosine (cosine), stays (constant),
    or stays and falls over the last --decay_share of the updates (wsd)."""
    decay_share: float = setting(0.2, ABOVE_0_BELOW_1, used_with="lr_schedule wsd")
    """For wsd: share of all updates over which the rate falls to zero, as 1 - sqrt."""
    weight_decay: float = setting(0.01, NOT_BELOW_0)
    """Weight decay of AdamW; biases and LayerNorm have none."""
    max_grad_norm: float = setting(1.0, NOT_BELOW_0)
    """Gradients are clipped to this global norm; 0: they are not clipped."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto")
    """auto is bf16 if the GPU or CPU is faster in it, else fp32. bf16 and fp16 need ZeRO 1 or higher; fp16
    also needs a GPU. Fine-tuned rankers are always evaluated in fp32."""


@dataclass
class GuardSettings:
    """Sets when a failing run ends."""

    GROUP = "monitoring"

    stall_minutes: float = setting(10.0, ABOVE_0, may_change=True)
    """End all ranks if none makes progress for this many minutes, with their stacks and the name of the one that
    stalls."""
    max_skipped_steps: int = setting(20, ABOVE_0, may_change=True)
    """End the run after this many updates in a row were skipped because a loss or gradient was not finite."""
    local_rank: int = setting(-1, may_change=True)
    """Set by the deepspeed launcher."""


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
        remaining = max(0.0, (self.total - step) / max(1, self.total - self.warmup))
        return self.peak * (remaining if self.shape == "triangular" else (1 - math.cos(math.pi * remaining)) / 2)

    @property
    def decay_start(self) -> int:
        """Returns the first update of the decay of wsd; ``total`` for other shapes."""
        return self.total - (math.ceil(self.decay_share * self.total) if self.shape == "wsd" else 0)


def make_schedule(
    config: OptimizerSettings, peak: float, total: int, warmup: int | None, what: str = "run", flag: str | None = None
) -> Schedule:
    """Returns the schedule; ``flag``: the flag and value that ``warmup`` follows from, if it is not --warmup_steps."""
    flag = flag or f"--warmup_steps {warmup}"
    if warmup is None:
        warmup = OPEN_ENDED_WARMUP if config.lr_schedule in OPEN_ENDED else total // 10
        flag = f"--lr_schedule {config.lr_schedule} without --warmup_steps"
    schedule = Schedule(config.lr_schedule, peak, warmup, total, config.decay_share)
    if total and warmup >= total:
        raise KinspanError(f"{flag}: {warmup} steps of warm-up are not below the {total} steps of the {what}")
    if total and warmup >= (end := schedule.decay_start):
        raise KinspanError(f"{flag}: {warmup} steps of warm-up, but --decay_share ends the plateau at step {end}")
    return schedule
