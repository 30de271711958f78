"""The settings that pre-training and fine-tuning share."""

from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.settings import ABOVE_0, BETWEEN_0_AND_1, NOT_BELOW_0, setting
from pretrain.engine.schedule import Shape


@dataclass
class OptimizerSettings:
    """How weights are updated."""

    GROUP = "optimisation"

    lr_schedule: Shape = setting("triangular")
    """After the warm-up the rate falls linearly to zero (triangular), falls along a cosine (cosine), stays (constant),
    or stays and falls over the last --decay_share of the updates (wsd)."""
    decay_share: float = setting(0.2, BETWEEN_0_AND_1, used_with="lr_schedule wsd")
    """For wsd: share of all updates over which the rate falls to zero, as 1 - sqrt."""
    weight_decay: float = setting(0.01, NOT_BELOW_0)
    """Weight decay of AdamW; biases and LayerNorm have none."""
    max_grad_norm: float = setting(1.0, NOT_BELOW_0)
    """Gradients are clipped to this global norm; 0: they are not clipped."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto")
    """auto is bf16 where the GPU or processor is faster in it, else fp32. bf16 and fp16 need ZeRO 1 or higher; fp16
    also needs a GPU. Scores that are reported are always computed in fp32."""
    allow_cpu: bool = setting(False, may_change=True)
    """Train on the processor although this machine has GPUs that torch cannot use; without this it is an error."""


@dataclass
class GuardSettings:
    """When a run that goes wrong ends."""

    GROUP = "monitoring"

    stall_minutes: float = setting(10.0, ABOVE_0, may_change=True)
    """End all ranks if none makes progress for this many minutes, with their stacks and the name of the one that
    stalls."""
    max_skipped_steps: int = setting(20, ABOVE_0, may_change=True)
    """End the run after this many updates in a row were skipped because a loss or gradient was not finite."""
    local_rank: int = setting(-1, may_change=True)
    """Set by the deepspeed launcher."""
