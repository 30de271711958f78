"""The DeepSpeed engine: its settings, its optimizer, and joining the other ranks."""

import os
import warnings
from typing import Any

import torch

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import (
    Engine,
    adapt_loss_scaling,
    silence_memory_reports,
    silence_start,
    skip_lone_reduction,
    skip_operator_builds,
    update_on_device,
)
from pretrain.engine.deepspeed_config import zero_stage
from pretrain.engine.device import claim_device, set_threads
from pretrain.engine.layout import Layout
from pretrain.engine.world import adopt_world

HIGH_RATE = 5e-4  # a learning rate too high for all weights of a pre-trained encoder
ALIGNED = 8  # a GPU reads 8 numbers of two bytes at once if they begin at a multiple of 16 bytes


def complete_settings(settings: JsonObject, max_grad_norm: float, layout: Layout, precision: str) -> JsonObject:
    """Adds to DeepSpeed's settings those that follow from our flags.

    The three batch sizes only satisfy DeepSpeed's checks: ``Layout`` deals out the real shares, which may be uneven.
    """
    if precision == "fp32" and settings.get("communication_data_type", "fp32") != "fp32":
        raise KinspanError("--deepspeed_config: communication_data_type rounds the gradients of --precision fp32")
    exact = {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    return {
        **(exact if precision == "bf16" else {}),  # otherwise gradients would be summed with 8 bits of precision
        "steps_per_print": 10**9,
        "timers": {"throughput": {"enabled": False}},  # it waits for the device twice per micro-batch
        "zero_allow_untested_optimizer": True,  # torch's AdamW, which is the same on every device
        "zero_force_ds_cpu_optimizer": False,
        **settings,
        "train_micro_batch_size_per_gpu": layout.micro,
        "gradient_accumulation_steps": layout.accumulation,
        "train_batch_size": layout.micro * layout.accumulation * layout.world,
        "gradient_clipping": max_grad_norm,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {**settings.get("fp16", {}), "enabled": precision == "fp16"},
    }


def group_parameters(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns AdamW's groups: weight decay on matrices alone, none on biases and LayerNorm; no frozen parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed, plain = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def puts_odd_sizes_last() -> bool:
    """Returns whether ZeRO's flat buffers have parameters of odd sizes last: a GPU reads those behind them slowly."""
    return torch.cuda.is_available()


def start_distributed() -> None:
    """Joins the other ranks, each on its GPU if there are any; without a launcher the world is one rank."""
    silence_start()
    import deepspeed

    # DeepSpeed calls collectives by deprecated names: every rank would warn of each
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*torch\.distributed.*")
    # Its barriers name no device, and so use the current one, which claim_device has set
    warnings.filterwarnings("ignore", category=UserWarning, message=r"barrier\(\): using the device")
    world = adopt_world()
    claim_device(world.local_rank)
    set_threads(world.local_size)
    skip_operator_builds()
    try:
        deepspeed.init_distributed(verbose=False)
    except torch.distributed.DistNetworkError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise KinspanError(f"the ranks cannot connect at {address} (--master_port): {quote_error(error)}") from error
    if ranks.is_distributed():  # the groups must be made in the same order on all ranks
        ranks.process_group("control"), ranks.process_group("writer")
    elif torch.cuda.is_available():
        # A group of one rank uses the device of its first reduction; without one torch warns that it guesses
        torch.distributed.all_reduce(torch.zeros(1, device="cuda"))


def build_engine(model: torch.nn.Module, settings: JsonObject, learning_rate: float, weight_decay: float) -> Engine:
    """Builds the DeepSpeed engine, with AdamW (0.9, 0.999, 1e-8) as in Di Liello et al., 2022, appendix B."""
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfigError

    silence_memory_reports()
    groups = group_parameters(model, weight_decay)
    if puts_odd_sizes_last() and zero_stage(settings):
        for group in groups:
            group["params"].sort(key=lambda parameter: parameter.numel() % ALIGNED > 0)
    adamw = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)
    try:
        engine, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=settings)
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, DeepSpeedConfigError) as error:
        raise KinspanError(f"--deepspeed_config: DeepSpeed refuses it: {quote_error(error)}") from error
    adapt_loss_scaling(engine)
    update_on_device(engine)
    if ranks.is_distributed():
        ranks.extend_timeouts(deepspeed.utils.groups._get_data_parallel_group())
    else:
        skip_lone_reduction(engine)
    return engine


def set_learning_rate(engine: Engine, rate: float) -> None:
    """Sets the learning rate of the next update."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
