"""What an update runs on: torch alone in one process, or DeepSpeed over any number of ranks."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data_pipeline.core.errors import KinspanError
from pretrain.checkpoints.capture import TAG
from pretrain.engine.device import choose_precision, claim_device
from pretrain.engine.engine import (
    build_engine,
    complete_settings,
    group_parameters,
    read_deepspeed_config,
    start_distributed,
    zero_stage,
)
from pretrain.engine.layout import Layout
from pretrain.engine.world import read_launcher_variables

from .config import FinetuneConfig

STATE = "state.pt"
SEVERAL_RANKS = "ds_configs/zero1.json"


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the others.

    deepspeed: DeepSpeed's settings; None: this process trains with torch alone
    """

    rank: int = 0
    world: int = 1
    deepspeed: dict[str, Any] | None = None


class PlainEngine:
    """torch alone, behind those calls of DeepSpeed's engine that training and checkpoints make.

    In bf16 and fp16 the forward pass is torch's autocast over fp32 weights. Frozen parameters stand neither in the
    optimizer nor in what a checkpoint keeps: they are those of the model that a run starts from.
    """

    def __init__(self, model: nn.Module, config: FinetuneConfig, accumulation: int, precision: str) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            group_parameters(model, config.weight_decay), betas=(0.9, 0.999), eps=1e-8, fused=True
        )
        self.accumulation, self.max_grad_norm, self.micro_steps = accumulation, config.max_grad_norm, 0
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.autocast = torch.autocast(self.device.type, half) if half else nullcontext()
        self.checkpoint_engine: Any = None  # pretrain.checkpoints.writer's, while it saves
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    def __call__(self, **inputs: Any) -> torch.Tensor:
        with self.autocast:
            return self.module(**inputs)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss / self.accumulation).backward()
        if (self.micro_steps + 1) % self.accumulation == 0:
            self.scaler.unscale_(self.optimizer)  # here and not in step: the guard looks at the gradient in between

    def step(self) -> None:
        """The update, once all micro-batches of a batch went backward."""
        self.micro_steps += 1
        if self.micro_steps % self.accumulation:
            return
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def zero_optimization(self) -> bool:
        return False

    def gradient_clipping(self) -> float:
        return 0.0  # step clips

    def save_checkpoint(self, folder: str, tag: str, save_latest: bool = False) -> None:
        frozen = self._frozen_state()
        state = {
            "model": {name: value for name, value in self.module.state_dict().items() if name not in frozen},
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        self.checkpoint_engine.save(state, f"{folder}/{tag}/{STATE}")

    def load_checkpoint(self, folder: str, tag: str) -> tuple[str, None]:
        path = Path(folder) / tag / STATE
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.module.load_state_dict({**state["model"], **self._frozen_state()})
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        return str(path), None

    def _frozen_state(self) -> dict[str, torch.Tensor]:
        parameters = self.module.named_parameters(remove_duplicate=False)
        return {name: p.detach() for name, p in parameters if not p.requires_grad}


def join_ranks(config: FinetuneConfig) -> Ranks:
    """Joins the other ranks; alone, and without ``--deepspeed_config``, torch trains without DeepSpeed.

    Raises KinspanError for a ``--deepspeed_config`` that is none.
    """
    rank, _, world = read_launcher_variables()
    if config.deepspeed_config is None and world == 1:
        claim_device(0, config.allow_cpu)
        return Ranks()
    settings = read_deepspeed_config(config.deepspeed_config or SEVERAL_RANKS)
    start_distributed(config.allow_cpu)
    return Ranks(rank=rank, world=world, deepspeed=settings)


def check_begun_alike(checkpoint: Path, settings: dict[str, Any] | None) -> None:
    """Raises KinspanError where torch alone wrote the checkpoint and DeepSpeed is to read it, or the reverse.

    settings: as of ``make_engine``
    """
    by_torch = (checkpoint / TAG / STATE).is_file()
    if by_torch == (settings is None):
        return
    begun, how = (
        ("with torch alone", "with `python`, in one process")
        if by_torch
        else ("with DeepSpeed", "with the `deepspeed` launcher and two ranks or more")
    )
    raise KinspanError(f"{checkpoint}: the run was begun {begun}: go on {how}, or give another --output_dir")


def make_engine(
    model: nn.Module, config: FinetuneConfig, layout: Layout, settings: dict[str, Any] | None
) -> tuple[Any, str]:
    """The engine with AdamW, and its precision.

    AdamW's betas are 0.9 and 0.999, its epsilon 1e-8, as in pre-training (Di Liello et al., 2022, appendix B).

    settings: DeepSpeed's; None: torch alone
    """
    shared = replace(config, deepspeed_config=config.deepspeed_config or SEVERAL_RANKS)
    if settings is None:
        precision = choose_precision(shared.precision, zero_stage=1)  # autocast can always be had
        if precision == "fp16" and not torch.cuda.is_available():
            raise KinspanError("--precision fp16 needs a GPU: use bf16 or fp32 here")
        return PlainEngine(model, config, layout.accumulation, precision), precision
    precision = choose_precision(shared.precision, zero_stage(settings))
    return build_engine(model, shared, complete_settings(settings, shared, layout, precision)), precision
