"""Everything that depends on DeepSpeed's internals: its private attributes, its pickles, and fixes of its bugs.

``deepspeed`` is imported inside the functions, because it takes seconds.

Updates whose loss or gradient is not finite are skipped on all ranks, and counted: each update calls
``nan_guard`` on each micro-batch's sums before its backward pass, and ``finish_update`` for the engine's last step.
Norm, clipping and skipping stay on the device, so that the host waits for none of them.
"""

import io
import logging
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from data_pipeline.core.files import JsonObject

STARTING = ("Setting accelerator to", "Setting ds_accelerator to", "Detected CUDA_VISIBLE_DEVICES")
UNPICKLING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
EPSILON = 1e-6  # added to the norm by which gradients are divided, as DeepSpeed does


class Engine(Protocol):
    """Names the parts of DeepSpeed's engine that we use; DeepSpeed has no types."""

    module: Any
    optimizer: Any
    device: torch.device
    global_rank: int
    micro_steps: int
    basic_optimizer: torch.optim.Optimizer
    checkpoint_engine: object
    buffered_allreduce_fallback: Callable[..., None]
    clip_fp32_gradients: Callable[[], None]
    backward: Callable[[torch.Tensor], object]
    step: Callable[[], None]
    zero_grad: Callable[[], None]
    train: Callable[[], object]
    eval: Callable[[], object]
    zero_optimization: Callable[[], bool]
    gradient_clipping: Callable[[], float]
    get_global_grad_norm: Callable[[], Any]
    set_gradient_accumulation_boundary: Callable[[bool], None]
    save_checkpoint: Callable[..., object]
    load_checkpoint: Callable[..., tuple[str | None, object]]
    destroy: Callable[[], None]
    _config: SimpleNamespace
    _copy_recovery_script: Callable[[str], None]
    _is_gradient_accumulation_boundary: bool | None

    def __call__(self, **inputs: object) -> Any: ...


def silence_start() -> None:
    """Keeps DeepSpeed from logging on every rank what it detects. Must be called before ``deepspeed`` is imported."""
    for name in ("DeepSpeed", "DeepSpeedPySpy"):
        logging.getLogger(name).addFilter(lambda record: not record.getMessage().startswith(STARTING))


def silence_memory_reports() -> None:
    """Keeps DeepSpeed's optimizer for bf16 from printing twenty lines on memory while it is built."""
    from deepspeed.runtime import bf16_optimizer

    bf16_optimizer.see_memory_usage = lambda *_, **__: None


def skip_operator_builds() -> None:
    """Keeps DeepSpeed from looking for operators to compile, which starts compilers and may hang on a stale lock."""
    import deepspeed
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    deepspeed.ops.__compatible_ops__ = dict.fromkeys([*ALL_OPS, "deepspeed_not_implemented"], False)


def adapt_loss_scaling(engine: Engine) -> None:
    """Lets fp16 survive many overflows in a row, which the loop counts, and has ``finish_update`` grow the scale."""
    optimizer = engine.optimizer
    if hasattr(getattr(optimizer, "loss_scaler", None), "raise_error_at_min_scale"):
        optimizer.loss_scaler.raise_error_at_min_scale = False
        # DeepSpeed would grow the scale just before it divides the gradient by it, and so halve the gradient
        optimizer._update_scale = lambda overflow: overflow and optimizer.loss_scaler.update_scale(overflow)


def skip_lone_reduction(engine: Engine) -> None:
    """Keeps DeepSpeed without ZeRO from averaging the gradients of a single rank, which would change no bit."""
    engine.buffered_allreduce_fallback = lambda *_, **__: None


def release_engine(engine: Engine) -> None:
    """Frees the memory of an engine whose run is over: DeepSpeed's hooks would keep it alive."""
    engine.destroy()
    optimizer = engine.basic_optimizer
    updated = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter in (*engine.module.parameters(), *updated):
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    optimizer.state.clear()


def measure_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all gradients, float64 ``[]``; on a CPU row by row, for the sake of precision."""
    if gradients[0].device.type != "cpu":
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).double())
    rows = [torch.linalg.vector_norm(g, dim=-1).double() for g in gradients]
    return torch.stack([row.square().sum() for row in rows]).sum().sqrt()


def clip_on_device(gradients: list[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scales the gradients down to ``max_norm`` if their norm is larger; 0: never."""
    if max_norm > 0:
        torch._foreach_mul_(gradients, (max_norm / (norm + EPSILON)).clamp(max=1.0).float())


def update_on_device(engine: Engine) -> None:
    """Makes bf16 with ZeRO 1 compute norm and clipping on the device, with equal results; ZeRO 2 and 3 stay."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    engine.clip_fp32_gradients = lambda: None  # finish_update clips them
    optimizer = engine.optimizer
    if isinstance(optimizer, BF16_Optimizer) and optimizer.grad_acc_dtype is torch.float32:
        optimizer.update_hp_grads = partial(_add_gradients, optimizer)
        optimizer.step = partial(_step, optimizer)


@torch.no_grad()
def _add_gradients(optimizer: Any, clear_lp_grads: bool = False) -> None:
    """Adds the gradients of a micro-batch to their sums, group by group, and frees their memory."""
    for group_index, group in enumerate(optimizer.bf16_groups):
        if any(parameter.grad is None for parameter in group):  # this loss does not reach it
            for index, parameter in enumerate(group):
                optimizer._update_hp_grad(parameter, group_index, index, clear_lp_grads)
        else:
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in group])
            optimizer.fp32_groups_actual_gradients_flat[group_index].add_(flat)
            optimizer.fp32_groups_has_gradients[group_index] = [True] * len(group)
        for parameter in group:
            parameter.grad = None


@torch.no_grad()
def _step(optimizer: Any) -> None:
    """Makes an update, in which torch's fused AdamW changes nothing if ``found_inf`` is 1."""
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


def finish_update(engine: Engine) -> tuple[torch.Tensor, Any]:
    """Makes an update's last step; returns whether it was skipped, bool ``[]`` on the device, and the gradient's norm.

    Without ZeRO it clips, and has fused AdamW skip a gradient that is not finite; ZeRO does both, 2 and 3 on the host.
    """
    if engine.zero_optimization():
        engine.step()
        norm = engine.get_global_grad_norm()
    else:
        grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
        norm = measure_norm(grads)
        clip_on_device(grads, norm, engine.gradient_clipping())
        engine.optimizer.found_inf = (~norm.isfinite()).float()
        engine.step()
    zero = engine.optimizer
    if hasattr(getattr(zero, "optimizer", zero), "found_inf"):
        return ~norm.isfinite(), norm
    if not zero.overflow and hasattr(zero, "loss_scaler"):
        zero.loss_scaler.update_scale(False)
    elif zero.overflow and getattr(zero, "cpu_offload", False):  # offload would add the next gradient to this one
        zero.averaged_gradients = dict.fromkeys(zero.averaged_gradients)
    return torch.full((), bool(zero.overflow), device=engine.device), norm


@contextmanager
def without_updates(engine: Engine) -> Iterator[None]:
    """In the block, ``engine.step()`` updates nothing; afterwards gradients and counters are as they were before.

    DeepSpeed's sums of gradients are cleared, as they may hold NaN; after NaN in ZeRO 3's it skips the first update.
    """
    micro_steps, optimizer = engine.micro_steps, engine.optimizer
    engine.set_gradient_accumulation_boundary(False)
    yield
    engine.zero_grad()
    optimizer.zero_grad()
    for name in ("all_grad_tensors", "averaged_gradients"):
        getattr(optimizer, name, {}).clear()
    engine.micro_steps = micro_steps
    engine._is_gradient_accumulation_boundary = None


def capture_files(engine: Engine, tag: str, without_frozen: bool = False) -> JsonObject:
    """Returns the content of each file that ``engine.save_checkpoint`` would write on this rank, by name."""
    states: JsonObject = {}
    previous = engine.checkpoint_engine
    engine.checkpoint_engine = SimpleNamespace(
        save=lambda state_dict, path: states.update({Path(path).as_posix(): state_dict}),
        makedirs=lambda *_, **__: None,
        create=lambda _: None,
        commit=lambda _: None,
        is_data_parallel_writer=lambda rank: rank == 0,
        is_decoupled=lambda: False,
        preserves_storage_sharing=lambda: True,
    )
    engine._copy_recovery_script = lambda folder: None  # DeepSpeed would copy a script into the checkpoint
    try:
        engine.save_checkpoint(".", tag=tag, save_latest=False, exclude_frozen_parameters=without_frozen)
    finally:
        engine.checkpoint_engine = previous
    return states


@contextmanager
def restricted_unpickling() -> Iterator[None]:
    """In the block, ``torch.load`` refuses classes that DeepSpeed's checkpoints do not need."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    previous = os.environ.get(UNPICKLING)
    os.environ[UNPICKLING] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        if previous is None:
            del os.environ[UNPICKLING]
        else:
            os.environ[UNPICKLING] = previous


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yields a symlink to ``folder`` without glob characters, which DeepSpeed does not escape."""
    with tempfile.TemporaryDirectory(prefix="kinspan-") as temporary:
        link = Path(temporary) / "folder"
        link.symlink_to(folder.resolve())
        yield link


def load_sharded_checkpoint(engine: Engine, folder: Path, tag: str, without_frozen: bool = False) -> bool:
    """Loads what ``capture_files`` returned on as many ranks; returns False if DeepSpeed finds nothing to load."""
    options: dict[str, object] = {"custom_load_fn": load_without_frozen} if without_frozen else {}
    with plain_path(folder) as plain, redirect_stdout(io.StringIO()), restricted_unpickling():
        path, _ = engine.load_checkpoint(str(plain), tag=tag, **options)
    engine.optimizer.clip_grad = engine.gradient_clipping()  # which ZeRO 1 and 2 have loaded, too
    return path is not None


def write_universal_checkpoint(folder: Path, source: str, target: str) -> None:
    """Converts ``folder/source`` by DeepSpeed's converter, in this process, where unpickling is restricted."""
    from deepspeed.checkpoint import ds_to_universal

    output = io.StringIO()
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with plain_path(folder) as plain, redirect_stdout(output), redirect_stderr(output), restricted_unpickling():
        paths = {"input_folder": str(plain / source), "output_folder": str(plain / target)}
        ds_to_universal.main(Namespace(**paths, **options, inject_missing_state=True))


def load_without_frozen(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
    """Loads all trained parameters of a module from a checkpoint without the frozen ones; a ``custom_load_fn``."""
    trained = {name for name, parameter in dst.named_parameters() if parameter.requires_grad}
    keys = dst.load_state_dict(src, strict=False)
    if wrong := sorted(trained & set(keys.missing_keys) | set(keys.unexpected_keys)):
        raise RuntimeError(f"the checkpoint has other parameters, such as {wrong[0]}")


def load_universal_checkpoint(engine: Engine, folder: Path, tag: str, without_frozen: bool = False) -> bool:
    """Loads what ``write_universal_checkpoint`` wrote; returns False if DeepSpeed finds nothing to load.

    Fixes two bugs of DeepSpeed: under ZeRO 3 all parameter groups get the settings and the step count of the first one;
    and the count is loaded to the host, while fused AdamW needs it on the parameters' device.
    """
    optimizer = engine.optimizer
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    engine._config.load_universal_checkpoint = True  # the setting "load_universal", for this one load
    try:
        loaded = load_sharded_checkpoint(engine, folder, tag, without_frozen)
    finally:
        engine._config.load_universal_checkpoint = False
    if not loaded:
        return False
    for group, previous in zip(optimizer.param_groups, settings, strict=True):
        group.update(previous)
    for parameter, state in optimizer.state.items():
        state["step"] = state["step"].to(parameter.device, copy=True)
    return True
