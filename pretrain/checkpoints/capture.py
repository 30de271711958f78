"""What a checkpoint holds, taken from the engine: DeepSpeed's files by name, and the full fp32 weights."""

import copy
from typing import Any

import torch
import torch.distributed as dist

from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import capture_files

TAG = "engine"
BASE = "base"  # in the metadata of an adapter's weights: the fingerprint of its base


def find_base(module: Any) -> str | None:
    """Returns the fingerprint of the frozen base of an adapter that is trained; None for a whole model."""
    return getattr(module, "base", None)


def capture(engine: Any, copied: bool) -> dict[str, Any]:
    """Returns what this rank's engine would write to disk, by file name within the checkpoint.

    copied: the values are copied to host memory, so that training may go on while they are written
    """
    states = capture_files(engine, TAG, without_frozen=find_base(engine.module) is not None)
    seen: dict[Any, torch.Tensor] = {}
    return {name: _copy_to_host(state, seen) for name, state in states.items()} if copied else states


def _copy_to_host(value: Any, seen: dict[Any, torch.Tensor]) -> Any:
    """Copies nested values; a tensor that occurs twice does so in the copy, too. ``seen``: copies made so far"""
    if isinstance(value, torch.Tensor):
        place = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if place not in seen:
            seen[place] = value.detach().to("cpu", copy=True)
        return seen[place]
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((k, _copy_to_host(v, seen)) for k, v in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copy_to_host(v, seen) for v in value)
    return copy.deepcopy(value)


def full_weights(engine: Any) -> dict[str, torch.Tensor]:
    """Returns every trained parameter in fp32, from ZeRO's master copy where there is one; tied parameters once.

    All ranks must call it, because they gather the parameters together; only rank 0 gets them.
    """
    if has_master_copy := engine.zero_optimization():
        from deepspeed.utils import safe_get_full_fp32_param  # takes seconds, and says so
    has_base, weights = find_base(engine.module) is not None, {}
    for name, parameter in engine.module.named_parameters():
        if has_base and not parameter.requires_grad:
            continue
        full = safe_get_full_fp32_param(parameter) if has_master_copy else None
        full = parameter if full is None else full
        if not ranks.is_distributed() or dist.get_rank() == 0:
            host = full.detach().to("cpu", torch.float32, copy=True)
            weights[name] = host.reshape(getattr(parameter, "ds_shape", parameter.shape)).contiguous()
    return weights
