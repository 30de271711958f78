"""All that depends on how DeepSpeed is made inside: its private attributes, its pickles, and repairs of its bugs.

Tried with DeepSpeed 0.19.8; the tests notice where another version differs. ``deepspeed`` is imported inside the
functions, because it takes seconds.
"""

import io
import logging
import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

STARTING = ("Setting accelerator to", "Setting ds_accelerator to", "Detected CUDA_VISIBLE_DEVICES")
UNPICKLING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def silence_start() -> None:
    """Keeps DeepSpeed from saying, on every rank, what it found and loads. Called before ``deepspeed`` is imported."""
    for name in ("DeepSpeed", "DeepSpeedPySpy"):
        logging.getLogger(name).addFilter(lambda record: not record.getMessage().startswith(STARTING))


def silence_memory_reports() -> None:
    """Keeps DeepSpeed's optimizer for bf16 from printing its memory in twenty lines while it is built."""
    from deepspeed.runtime import bf16_optimizer

    bf16_optimizer.see_memory_usage = lambda *_, **__: None


def skip_own_operators() -> None:
    """Keeps DeepSpeed from looking for operators that it could compile, none of which training calls.

    Looking starts compilers, and may leave a lock on which every later start hangs.
    """
    import deepspeed
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    deepspeed.ops.__compatible_ops__ = dict.fromkeys([*ALL_OPS, "deepspeed_not_implemented"], False)


def disable_overflow_error(engine: Any) -> None:
    """Lets a run survive many overflows in a row in fp16: the training loop counts skipped updates itself."""
    scaler: Any = getattr(engine.optimizer, "loss_scaler", None)
    if hasattr(scaler, "raise_error_at_min_scale"):
        scaler.raise_error_at_min_scale = False


def skip_lone_reduction(engine: Any) -> None:
    """Keeps DeepSpeed without ZeRO from copying all gradients of one rank to and fro to average them, which changes no
    bit."""
    engine.buffered_allreduce_fallback = lambda *_, **__: None


def release_engine(engine: Any) -> None:
    """Gives back the memory of an engine, once its run is over: DeepSpeed's hooks keep it alive."""
    engine.destroy()
    optimizer = engine.basic_optimizer
    updated = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter in (*engine.module.parameters(), *updated):
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    optimizer.state.clear()


def read_overflow(engine: Any) -> bool:
    """Returns whether ZeRO has skipped the last update because the gradient was not finite.

    With the optimizer offloaded, DeepSpeed would add the next gradients to those of the skipped update: they are
    dropped.
    """
    optimizer = engine.optimizer
    if optimizer.overflow and getattr(optimizer, "cpu_offload", False):
        optimizer.averaged_gradients = dict.fromkeys(optimizer.averaged_gradients)
    return bool(optimizer.overflow)


@contextmanager
def without_updates(engine: Any) -> Iterator[None]:
    """In the block, ``engine.step()`` updates nothing; afterwards gradients and counters are as they were before.

    DeepSpeed's sums of gradients go, since they may hold NaN; after NaN in those of ZeRO 3 it skips the first update.
    """
    micro_steps, optimizer = engine.micro_steps, engine.optimizer
    engine.set_gradient_accumulation_boundary(False)
    yield
    engine.zero_grad()
    optimizer.zero_grad()
    for sums in ("all_grad_tensors", "averaged_gradients"):
        getattr(optimizer, sums, {}).clear()
    engine.micro_steps = micro_steps
    engine._is_gradient_accumulation_boundary = None


def capture_files(engine: Any, tag: str, without_frozen: bool = False) -> dict[str, Any]:
    """Returns what ``engine.save_checkpoint`` would write on this rank: the content of each file, by its name."""
    states: dict[str, Any] = {}

    def keep(state_dict: Any, path: str) -> None:
        states[Path(path).as_posix()] = state_dict

    before = engine.checkpoint_engine
    engine.checkpoint_engine = SimpleNamespace(
        save=keep,
        makedirs=lambda *_, **__: None,
        create=lambda _: None,
        commit=lambda _: None,
        is_data_parallel_writer=lambda rank: rank == 0,
        is_decoupled=lambda: False,
        preserves_storage_sharing=lambda: True,
    )
    engine._copy_recovery_script = lambda folder: None  # DeepSpeed would put a program among the data
    try:
        options = {"exclude_frozen_parameters": True} if without_frozen else {}
        engine.save_checkpoint(".", tag=tag, save_latest=False, **options)
    finally:
        engine.checkpoint_engine = before
    return states


@contextmanager
def restricted_unpickling() -> Iterator[None]:
    """In the block, ``torch.load`` refuses every class but those that DeepSpeed's checkpoints need.

    DeepSpeed asks torch for unrestricted loading; the environment variable overrules that.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = os.environ.get(UNPICKLING)
    os.environ[UNPICKLING] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        if before is None:
            del os.environ[UNPICKLING]
        else:
            os.environ[UNPICKLING] = before


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """In the block, a path to the folder in which nothing reads as a wildcard.

    DeepSpeed makes wildcards and regular expressions of its paths without escaping them: it finds nothing in
    ``runs/[3]``.
    """
    with tempfile.TemporaryDirectory(prefix="kinspan-") as place:
        link = Path(place) / "folder"
        link.symlink_to(folder.resolve())
        yield link


def load_own_checkpoint(engine: Any, folder: Path, tag: str, without_frozen: bool = False) -> bool:
    """Loads what ``capture_files`` of as many ranks gave; False where DeepSpeed finds nothing to load."""
    options = {"custom_load_fn": load_trained} if without_frozen else {}
    with plain_path(folder) as plain, redirect_stdout(io.StringIO()), restricted_unpickling():
        path, _ = engine.load_checkpoint(str(plain), tag=tag, **options)
    return path is not None


def write_universal_checkpoint(folder: Path, source: str, target: str) -> None:
    """Runs DeepSpeed's converter on ``folder/source``, without output and in this process, where unpickling is
    restricted.

    ``inject_missing_state`` supplies the facts about pipelines and tensor parallelism that it asks for.
    """
    from deepspeed.checkpoint import ds_to_universal

    silence = io.StringIO()
    with plain_path(folder) as plain, redirect_stdout(silence), redirect_stderr(silence), restricted_unpickling():
        ds_to_universal.main(
            Namespace(
                input_folder=str(plain / source),
                output_folder=str(plain / target),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )


def load_trained(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
    """Loads a module's trained parameters, of a checkpoint without the frozen ones; DeepSpeed's ``custom_load_fn``.

    Raises RuntimeError where they are not all there, which no checkpoint of the same run lacks.
    """
    trained = {name for name, parameter in dst.named_parameters() if parameter.requires_grad}
    keys = dst.load_state_dict(src, strict=False)
    if wrong := sorted(trained & set(keys.missing_keys) | set(keys.unexpected_keys)):
        raise RuntimeError(f"the checkpoint is of other parameters, such as {wrong[0]}")


def load_universal_checkpoint(engine: Any, folder: Path, tag: str, without_frozen: bool = False) -> bool:
    """Loads what ``write_universal_checkpoint`` wrote to ``folder/tag``; False where DeepSpeed finds nothing to load.

    Two mistakes of DeepSpeed are repaired: under ZeRO 3 all parameter groups get the settings, and the one count of
    steps, of the first; and the count comes back on the host, while fused AdamW wants it beside the parameters.
    """
    optimizer = engine.optimizer
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    deepspeed_logger = logging.getLogger("DeepSpeed")
    level = deepspeed_logger.level
    deepspeed_logger.setLevel(logging.ERROR)  # it warns about a model parallelism that nobody asked for
    engine._config.load_universal_checkpoint = True  # the setting "load_universal", for this one load
    try:
        loaded = load_own_checkpoint(engine, folder, tag, without_frozen)
    finally:
        engine._config.load_universal_checkpoint = False
        deepspeed_logger.setLevel(level)
    if not loaded:
        return False
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)
    for parameter, state in optimizer.state.items():
        state["step"] = state["step"].to(parameter.device, copy=True)
    return True
