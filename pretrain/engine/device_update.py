"""Updates whose norm, clipping and skipping stay on the device, so that the host waits for none of them.

With bf16 and ZeRO 1 DeepSpeed's ``BF16_Optimizer`` asks on the host for the norm of every update. ``update_on_device``
puts two methods in the place of its shares that compute the same.

Updates whose loss or gradient is not finite are skipped whole, on all ranks, and counted: one update calls
``nan_guard`` on each micro-batch's sums before its backward pass, ``guard_update`` before the engine's last step,
and ``read_outcome`` after it.
"""

from functools import partial
from typing import Any

import torch

from pretrain.engine.deepspeed_compat import read_overflow

EPSILON = 1e-6  # added to the norm by which gradients are divided, as DeepSpeed does


def measure_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all gradients, float64 ``[]``; row by row on a processor, for fp32's precision."""
    if gradients[0].device.type != "cpu":
        return _measure_at_once(gradients)
    rows = [torch.linalg.vector_norm(g, dim=-1).double() for g in gradients]
    return torch.stack([row.square().sum() for row in rows]).sum().sqrt()


def _measure_at_once(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).double())


def clip_on_device(gradients: list[torch.Tensor], norm: torch.Tensor, most: float) -> None:
    """Scales the gradients down where their norm is above ``most``; never with 0."""
    if most > 0:
        torch._foreach_mul_(gradients, (most / (norm + EPSILON)).clamp(max=1.0).float())


def update_on_device(engine: Any) -> None:
    """Has bf16 with ZeRO 1, and fp32 without ZeRO, wait for nothing; ZeRO 2 and 3 stay as they are."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    engine.clip_fp32_gradients = lambda: None  # guard_update has clipped them
    optimizer = engine.optimizer
    if isinstance(optimizer, BF16_Optimizer) and optimizer.grad_acc_dtype is torch.float32:
        optimizer.update_hp_grads = partial(_add_gradients, optimizer)
        optimizer.step = partial(_step, optimizer)


def decides_on_device(engine: Any) -> bool:
    """Returns whether the device decides which updates are skipped, by ``found_inf``."""
    optimizer = engine.optimizer
    return hasattr(getattr(optimizer, "optimizer", optimizer), "found_inf")


@torch.no_grad()
def _add_gradients(optimizer: Any, clear_lp_grads: bool = False) -> None:
    """Adds the gradients of a micro-batch to their sums, a group's at once, and gives back their memory."""
    for number, group in enumerate(optimizer.bf16_groups):
        if any(parameter.grad is None for parameter in group):  # not reached by this loss
            for place, parameter in enumerate(group):
                optimizer._update_hp_grad(parameter, number, place, clear_lp_grads)
        else:
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in group])
            optimizer.fp32_groups_actual_gradients_flat[number].add_(flat)
            optimizer.fp32_groups_has_gradients[number] = [True] * len(group)
        for parameter in group:
            parameter.grad = None


@torch.no_grad()
def _step(optimizer: Any) -> None:
    """Makes an update. torch's fused AdamW leaves everything as it was where ``found_inf`` is 1."""
    sums = [
        total.view_as(parameter)
        for group, totals in zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True)
        for parameter, total in zip(group, totals, strict=True)
    ]
    norm = measure_norm(sums)
    shares = optimizer.fp32_groups_gradient_flat_partition
    clip_on_device(shares, norm, optimizer.clip_grad)
    for partition, gradient in zip(optimizer.fp32_groups_flat_partition, shares, strict=True):
        partition.grad = gradient
    optimizer.optimizer.found_inf = (~norm.isfinite()).float()
    optimizer.optimizer.step()
    optimizer._global_grad_norm = norm
    optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()
    optimizer.clear_hp_grads()


def nan_guard(sums: torch.Tensor) -> torch.Tensor:
    """Returns 1, or NaN if a sum is not finite: the loss times NaN makes every gradient NaN, on all ranks."""
    return (sums.detach() * 0 + 1).prod()


def guard_update(engine: Any) -> torch.Tensor | None:
    """Makes the engine's next update a skipped one where the gradient is not finite; returns the gradient's norm.

    Under ZeRO this returns None and does nothing, because DeepSpeed looks for itself. Without it torch's fused AdamW
    leaves everything as it was where ``found_inf`` is 1.
    """
    if engine.zero_optimization():
        return None
    grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
    norm = measure_norm(grads)
    clip_on_device(grads, norm, engine.gradient_clipping())
    engine.optimizer.found_inf = (~norm.isfinite()).float()
    return norm


def read_outcome(engine: Any, norm: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
    """Returns whether the update was skipped, bool ``[]`` on the device, and its global gradient norm.

    norm: what guard_update returned. Under ZeRO 2 and 3 DeepSpeed has decided on the host.
    """
    if norm is None:
        norm = engine.get_global_grad_norm()
    if decides_on_device(engine):
        return ~norm.isfinite(), norm
    return torch.full((), read_overflow(engine), device=engine.device), norm


def is_ordinary_overflow(precision: str, skipped_in_row: int) -> bool:
    """Returns whether a skipped update is only fp16 looking for its loss scale: the first of a row."""
    return precision == "fp16" and skipped_in_row == 1
