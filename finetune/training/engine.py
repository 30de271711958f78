"""The DeepSpeed engine of fine-tuning, over any number of ranks."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pretrain.engine.device import choose_precision
from pretrain.engine.engine import (
    build_engine,
    complete_settings,
    read_deepspeed_config,
    start_distributed,
    zero_stage,
)
from pretrain.engine.layout import Layout
from pretrain.engine.world import read_launcher_variables

from .config import FinetuneConfig

DEFAULT = "ds_configs/zero1.json"


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the others, with DeepSpeed's settings."""

    rank: int
    world: int
    deepspeed: dict[str, Any]


def join_ranks(config: FinetuneConfig) -> Ranks:
    """Joins the other ranks. Raises KinspanError for a ``--deepspeed_config`` that is none."""
    rank, _, world = read_launcher_variables()
    settings = read_deepspeed_config(config.deepspeed_config or DEFAULT)
    start_distributed(config.allow_cpu)
    return Ranks(rank=rank, world=world, deepspeed=settings)


def make_engine(model: nn.Module, config: FinetuneConfig, layout: Layout, settings: dict[str, Any]) -> tuple[Any, str]:
    """Returns the engine with AdamW, and its precision.

    AdamW's betas are 0.9 and 0.999, its epsilon 1e-8, as in pre-training (Di Liello et al., 2022, appendix B).

    settings: DeepSpeed's
    """
    config = replace(config, deepspeed_config=config.deepspeed_config or DEFAULT)
    precision = choose_precision(config.precision, zero_stage(settings))
    return build_engine(model, config, complete_settings(settings, config, layout, precision)), precision
