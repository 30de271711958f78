"""What a checkpoint holds, taken from the engine: DeepSpeed's files by name, and the full fp32 weights."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pretrain.runtime import ranks

TAG = "engine"


def capture(engine: Any, copied: bool) -> dict[str, Any]:
    """What this rank's engine would write to disk, by file name within the checkpoint.

    copied: in host memory of its own, so that training may go on
    """
    keeper = _Keeper()
    before, engine.checkpoint_engine = engine.checkpoint_engine, keeper
    engine._copy_recovery_script = lambda folder: None  # a program, where there should be data
    try:
        engine.save_checkpoint(".", tag=TAG, save_latest=False)
    finally:
        engine.checkpoint_engine = before
    seen: dict[Any, torch.Tensor] = {}
    return {name: _on_host(state, seen) if copied else state for name, state in keeper.states.items()}


class _Keeper:
    """Stands in for DeepSpeed's checkpoint engine, and keeps what that would write."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    def save(self, state_dict: Any, path: str) -> None:
        self.states[Path(path).as_posix()] = state_dict

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def create(self, info: Any) -> None:
        pass

    def commit(self, info: Any) -> None:
        pass

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        return True


def _on_host(value: Any, seen: dict[Any, torch.Tensor]) -> Any:
    """A copy of nested values; a tensor that stands there twice is one in the copy too."""
    if isinstance(value, torch.Tensor):
        place = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if place not in seen:
            seen[place] = value.detach().to("cpu", copy=True)
        return seen[place]
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((k, _on_host(v, seen)) for k, v in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(_on_host(v, seen) for v in value)
    return copy.deepcopy(value)


def full_weights(engine: Any) -> dict[str, torch.Tensor]:
    """Every parameter in fp32 from its master copy, gathered by all ranks, for rank 0 alone; tied ones once."""
    master = _master_copy if engine.zero_optimization() else (lambda parameter: None)
    weights = {}
    for name, parameter in engine.module.named_parameters():
        full = master(parameter)
        full = parameter if full is None else full
        if not ranks.is_distributed() or dist.get_rank() == 0:
            host = full.detach().to("cpu", torch.float32, copy=True)
            weights[name] = host.reshape(getattr(parameter, "ds_shape", parameter.shape)).contiguous()
    return weights


def _master_copy(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    from deepspeed.utils import safe_get_full_fp32_param

    return safe_get_full_fp32_param(parameter)
