"""The engine against the update written out."""

import pytest
import torch
from torch import nn

from data_pipeline.core.errors import KinspanError
from finetune.training.config import FinetuneConfig
from finetune.training.setup import join_ranks, make_engine
from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer, full_weights
from pretrain.engine.deepspeed_compat import guard_update
from pretrain.engine.engine import set_learning_rate
from pretrain.engine.layout import Layout


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)[:, 0]


class Adapted(Linear):
    """A frozen layer before the trained one."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x):
        return self.layer(self.frozen(x))[:, 0]


def config(**options):
    return FinetuneConfig("files=x", **{"precision": "fp32", "learning_rate": 0.1, "max_grad_norm": 0.5, **options})


def build(model, stage=None):
    settings = config(**({} if stage is None else {"deepspeed_config": f"ds_configs/zero{stage}.json"}))
    engine, precision = make_engine(model, settings, Layout(8, 4, 1), join_ranks(settings).deepspeed)
    assert precision == "fp32"
    return engine


def inputs(step, micro):
    return torch.arange(12.0).reshape(4, 3).sin() + step + micro


def steps(engine):
    """Makes three updates of two micro-steps; returns the weights after."""
    for step in range(3):
        set_learning_rate(engine, 0.1 / (step + 1))
        for micro in range(2):
            engine.backward(engine(x=inputs(step, micro)).square().sum())
            if micro == 1:
                guard_update(engine)
            engine.step()
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


@pytest.mark.parametrize("stage", [None, 0, 2])
def test_the_update_is_adamw_of_the_mean_gradient_clipped(stage):
    reference = Linear()
    decayed, plain = {"params": [reference.layer.weight]}, {"params": [reference.layer.bias], "weight_decay": 0}
    optimizer = torch.optim.AdamW([decayed | {"weight_decay": 0.01}, plain])
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        (sum(reference(inputs(step, micro)).square().sum() for micro in range(2)) / 2).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    ours = steps(build(Linear(), stage))
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(ours[name], parameter.detach())


@pytest.mark.parametrize("stage", [None, 0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_frozen_parameters_are_neither_optimised_nor_changed(stage, tmp_path):
    engine, start = build(Adapted(), stage), Adapted().state_dict()
    steps(engine)
    weights = full_weights(engine)
    assert torch.equal(weights["frozen.weight"], start["frozen.weight"])
    assert not torch.equal(weights["layer.weight"], start["layer.weight"])
    held = sum(p.numel() for group in engine.optimizer.param_groups for p in group["params"])
    assert held < 12  # 4 trained, rounded up under ZeRO; the frozen ones are 12
    Writer(tmp_path, rank=0).save(engine, {"step": 2, "world_size": 1})
    steps(engine)
    other = build(Adapted(), stage)
    load_checkpoint(other, tmp_path / "step-00000002", world=1)
    steps(other)
    one, two = full_weights(engine), full_weights(other)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_missing_deepspeed_config_is_refused():
    with pytest.raises(KinspanError, match="--deepspeed_config"):
        join_ranks(config(deepspeed_config="nowhere.json"))
