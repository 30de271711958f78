"""Updates whose loss or gradient is not finite: they are skipped whole, on all ranks, and counted.

One update calls, in this order: ``one_if_finite`` on each micro-batch's sums before its backward pass, ``guard_update``
before the engine's last step, and ``read_outcome`` after it. Nothing here waits for the device.
"""

from typing import Any

import torch

from .deepspeed_compat import read_overflow
from .device_update import clip_on_device, decides_on_device, measure_norm


def one_if_finite(sums: torch.Tensor) -> torch.Tensor:
    """1, or NaN where one of the sums is not finite: the loss times NaN makes every gradient NaN, on all ranks."""
    return (sums.detach() * 0 + 1).prod()


def guard_update(engine: Any) -> torch.Tensor | None:
    """Makes the engine's next update a skipped one where the gradient is not finite; returns the gradient's norm.

    Under ZeRO this returns None and does nothing, because DeepSpeed looks for itself. Without it torch's fused AdamW
    leaves
    everything as it was where ``found_inf`` is 1.
    """
    if engine.zero_optimization():
        return None
    grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
    norm = measure_norm(grads)
    clip_on_device(grads, norm, engine.gradient_clipping())
    engine.optimizer.found_inf = (~norm.isfinite()).float()
    return norm


def read_outcome(engine: Any, norm: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
    """Whether the update was skipped, bool ``[]`` on the device, and the global norm of its gradient.

    norm: what guard_update returned. Under ZeRO 2 and 3 DeepSpeed has decided on the host, and says so nowhere else.
    """
    if norm is None:
        norm = engine.get_global_grad_norm()
    if decides_on_device(engine):
        return ~norm.isfinite(), norm
    return torch.full((), read_overflow(engine), device=engine.device), norm


def is_ordinary_overflow(precision: str, skipped_in_row: int) -> bool:
    """Whether a skipped update is only fp16 looking for its loss scale: the first of a row."""
    return precision == "fp16" and skipped_in_row == 1
