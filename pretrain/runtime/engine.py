"""The DeepSpeed engine: settings, optimizer, and what the launcher tells us."""

import json
import os
import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch

from data_pipeline.errors import KinspanError, one_line
from data_pipeline.files import find_file
from pretrain.runtime import ranks

from .layout import Layout

OURS = {
    "train_batch_size": "--global_batch_size",
    "train_micro_batch_size_per_gpu": "--micro_batch_size",
    "gradient_accumulation_steps": "--global_batch_size and --micro_batch_size",
    "gradient_clipping": "--max_grad_norm",
    "optimizer": "--learning_rate and --weight_decay",
    "scheduler": "--learning_rate and --warmup_steps",
    "fp16": "--precision",
    "bf16": "--precision",
}


def read_deepspeed_config(name: str) -> dict[str, Any]:
    """The JSON file of that name, looked for here and beside the packages.

    Raises KinspanError where it is missing, is no JSON, sets what one of our flags sets, or names no stage of ZeRO.
    """
    path = find_file(name)
    if path is None:
        raise KinspanError(f"--deepspeed_config {name}: no such file")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise KinspanError(f"--deepspeed_config {name} is not a JSON object: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise KinspanError(f"--deepspeed_config {name} is not a JSON object, such as ds_configs/zero2.json")
    for key in OURS.keys() & settings.keys():
        raise KinspanError(f'--deepspeed_config {name} sets "{key}", which {OURS[key]} sets: remove it from the file')
    zero = settings.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise KinspanError(f'--deepspeed_config {name}: "zero_optimization" must be an object such as {{"stage": 2}}')
    for key in ("offload_optimizer", "offload_param"):
        if isinstance(zero.get(key), dict) and zero[key].get("device") == "nvme":
            raise KinspanError(
                f'--deepspeed_config {name}: "{key}" to NVMe, which checkpoints cannot hold: use the device "cpu"'
            )
    stage = zero.get("stage", 0)
    if type(stage) is not int or stage not in range(4):  # JSON's true would pass for 1
        raise KinspanError(f'--deepspeed_config {name}: "stage" is {json.dumps(stage)}, and must be 0, 1, 2 or 3')
    return settings


def zero_stage(settings: dict[str, Any]) -> int:
    """Of settings that read_deepspeed_config returned."""
    return settings.get("zero_optimization", {}).get("stage", 0)


@dataclass(frozen=True)
class OptimizerSettings:
    """What the engine needs of a run's settings, named as the flags are.

    learning_rate:    the peak of the schedule
    max_grad_norm:    gradients are clipped to this global norm; 0: never
    precision:        "auto", "fp32", "bf16" or "fp16"
    deepspeed_config: the file whose settings are in force, for error messages
    """

    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    precision: str
    deepspeed_config: str

    @classmethod
    def of(cls, config: Any) -> "OptimizerSettings":
        """Those of a dataclass of settings that has fields of these names."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


def choose_precision(optimizer: OptimizerSettings, settings: dict[str, Any]) -> str:
    """fp32, bf16 or fp16, with "auto" resolved for this machine.

    Without ZeRO DeepSpeed never scales an fp16 loss and tells no fp32 copy of bf16 weights: both are refused.
    """
    on_gpu = torch.cuda.is_available()
    if not zero_stage(settings):
        if optimizer.precision in ("bf16", "fp16"):
            raise KinspanError(f"--precision {optimizer.precision} needs ZeRO 1 or higher: use ds_configs/zero1.json")
        return "fp32"
    if optimizer.precision == "auto":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else _processor_has_bf16()
        return "bf16" if has_bf16 else "fp32"
    if optimizer.precision == "fp16" and not on_gpu:
        raise KinspanError("--precision fp16 needs a GPU: use bf16 or fp32 here")
    return optimizer.precision


def _processor_has_bf16() -> bool:
    """Whether this processor multiplies bf16 matrices itself; emulated, they are slower than fp32."""
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def complete_settings(
    settings: dict[str, Any], optimizer: OptimizerSettings, layout: Layout, precision: str
) -> dict[str, Any]:
    """DeepSpeed's settings with ours put in. The batch triple is nominal: shares are ours to deal out."""
    exact = {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    return {
        **(exact if precision == "bf16" else {}),  # else micro-batches and ranks would add up in 8 bits
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,  # torch's AdamW, the same on every device
        "zero_force_ds_cpu_optimizer": False,
        **settings,
        "train_micro_batch_size_per_gpu": layout.micro,
        "gradient_accumulation_steps": layout.accumulation,
        "train_batch_size": layout.micro * layout.accumulation * layout.world,
        "gradient_clipping": optimizer.max_grad_norm,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
    }


def group_parameters(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices and embeddings, not on biases and LayerNorm."""
    decayed: list[torch.nn.Parameter] = []
    plain: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        (decayed if parameter.ndim >= 2 else plain).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def read_launcher_variables() -> tuple[int, int, int]:
    """Rank, local rank and world size, from the launcher's variables; alone: 0, 0, 1."""
    return tuple(int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))  # type: ignore[return-value]


def start_distributed() -> None:
    """Joins the other ranks; started without a launcher, this process is a world of one."""
    import deepspeed

    # DeepSpeed calls collectives by names that this torch deprecates: once a rank and step kind, on every rank
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*torch\.distributed.*")
    for name, value in (
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29500" if os.environ["WORLD_SIZE"] != "1" else _free_port())
    if not torch.cuda.is_available() and "OMP_NUM_THREADS" not in os.environ:
        local = int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"])
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
    # Else DeepSpeed compiles an operator for inference that training never calls: a minute at the first start, a lock
    # at which every later start hangs if that is killed, and 69 MB of shared memory a rank that nobody frees
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(verbose=False)
    if ranks.is_distributed():  # made now, in one order on all ranks
        ranks.process_group("control"), ranks.process_group("writer")


def _free_port() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def build_engine(model: torch.nn.Module, optimizer: OptimizerSettings, settings: dict[str, Any]) -> Any:
    """The DeepSpeed engine over ``model`` with AdamW (0.9, 0.999, 1e-8), the paper's appendix B."""
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfigError

    adamw = torch.optim.AdamW(
        group_parameters(model, optimizer.weight_decay),
        lr=optimizer.learning_rate,
        betas=(0.9, 0.999),
        eps=1e-8,
        fused=True,
    )
    try:
        engine, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=settings)
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, DeepSpeedConfigError) as error:
        raise KinspanError(
            f"--deepspeed_config {optimizer.deepspeed_config}: DeepSpeed refuses it: {one_line(error)}"
        ) from error
    leave_scale_to_guard(engine)
    return engine


def leave_scale_to_guard(engine: Any) -> None:
    """In fp16 DeepSpeed raises after some 18 overflows in a row, when its loss scale can shrink no more; ``guard``
    counts them, and ends a run after ``--max_skipped_steps`` with what to do."""
    scaler: Any = getattr(engine.optimizer, "loss_scaler", None)
    if hasattr(scaler, "raise_error_at_min_scale"):
        scaler.raise_error_at_min_scale = False


def set_learning_rate(engine: Any, rate: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
