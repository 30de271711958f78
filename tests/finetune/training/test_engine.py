"""torch alone against DeepSpeed, and against the update written out."""

import pytest
import torch
from torch import nn

from data_pipeline.core.errors import KinspanError
from finetune.training.config import FinetuneConfig
from finetune.training.engine import PlainEngine, Ranks, join_ranks, make_engine
from pretrain.checkpoints.capture import full_weights
from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer
from pretrain.engine.device_update import guard_update
from pretrain.engine.engine import set_learning_rate
from pretrain.engine.layout import Layout


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)[:, 0]


def config(**options):
    return FinetuneConfig("files=x", **{"precision": "fp32", "learning_rate": 0.1, "max_grad_norm": 0.5, **options})


def steps(engine, accumulation, count=3):
    """Three updates of two or four micro-steps; the weights after."""
    for step in range(count):
        set_learning_rate(engine, 0.1 / (step + 1))
        for micro in range(accumulation):
            x = torch.arange(12.0).reshape(4, 3).sin() + step + micro
            loss = engine(x=x).square().sum()
            engine.backward(loss)
            if micro == accumulation - 1:
                guard_update(engine)
            engine.step()
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


def test_the_update_is_adamw_of_the_mean_gradient_clipped():
    model = Linear()
    reference = Linear()
    optimizer = torch.optim.AdamW(
        [
            {"params": [reference.layer.weight], "weight_decay": 0.01},
            {"params": [reference.layer.bias], "weight_decay": 0},
        ]
    )
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        x = [torch.arange(12.0).reshape(4, 3).sin() + step + micro for micro in range(2)]
        (sum(reference(part).square().sum() for part in x) / 2).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    ours = steps(PlainEngine(model, config(), 2, "fp32"), 2)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(ours[name], parameter.detach())


@pytest.mark.parametrize("stage", [0, 2])
def test_deepspeed_takes_the_same_steps(stage):
    ours = steps(PlainEngine(Linear(), config(), 2, "fp32"), 2)
    ranks = join_ranks(config(deepspeed_config=f"ds_configs/zero{stage}.json"))
    engine, precision = make_engine(Linear(), config(), Layout(8, 4, 1), ranks.deepspeed)
    assert precision == "fp32"
    theirs = steps(engine, 2)
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value)


def test_a_checkpoint_of_the_plain_engine(tmp_path):
    engine = PlainEngine(Linear(), config(), 2, "fp32")
    steps(engine, 2)
    Writer(tmp_path, rank=0).save(engine, {"step": 2})
    after = steps(engine, 2)
    other = PlainEngine(Linear(), config(), 2, "fp32")
    load_checkpoint(other, tmp_path / "step-00000002", world=1)
    again = steps(other, 2)
    assert all(torch.equal(after[name], again[name]) for name in after)


class Adapted(Linear):
    """A frozen layer before the trained one."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x):
        return self.layer(self.frozen(x))[:, 0]


@pytest.mark.parametrize("stage", [None, 0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_frozen_parameters_are_neither_optimised_nor_changed(stage, tmp_path):
    def build():
        options = {} if stage is None else {"deepspeed_config": f"ds_configs/zero{stage}.json"}
        ranks = join_ranks(config(**options))
        return make_engine(Adapted(), config(**options), Layout(8, 4, 1), ranks.deepspeed)[0]

    engine, start = build(), Adapted().state_dict()
    steps(engine, 2)
    weights = full_weights(engine)
    assert torch.equal(weights["frozen.weight"], start["frozen.weight"])
    assert not torch.equal(weights["layer.weight"], start["layer.weight"])
    held = sum(p.numel() for group in engine.optimizer.param_groups for p in group["params"])
    assert held < 12  # 4 trained, rounded up under ZeRO; the frozen ones are 12
    Writer(tmp_path, rank=0).save(engine, {"step": 2, "world_size": 1})
    steps(engine, 2)
    other = build()
    load_checkpoint(other, tmp_path / "step-00000002", world=1)
    steps(other, 2)
    one, two = full_weights(engine), full_weights(other)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_plain_engine_keeps_no_frozen_parameter_in_a_checkpoint(tmp_path):
    engine = PlainEngine(Adapted(), config(), 1, "fp32")
    steps(engine, 1)
    Writer(tmp_path, rank=0).save(engine, {"step": 1})
    state = torch.load(tmp_path / "step-00000001/engine/state.pt", weights_only=True)
    assert set(state["model"]) == {"layer.weight", "layer.bias"}
    assert len(state["optimizer"]["state"]) == 2


def test_bf16_keeps_weights_and_loss_in_fp32():
    engine = PlainEngine(Linear(), config(), 1, "bf16")
    assert engine(x=torch.ones(2, 3)).dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in engine.module.parameters())
    assert engine.module(torch.ones(2, 3)).dtype == torch.float32  # as the dev set is measured


def test_alone_without_deepspeed():
    assert join_ranks(config()) == Ranks(rank=0, world=1, deepspeed=None)


def test_deepspeed_settings_that_are_none():
    with pytest.raises(KinspanError, match=r"--deepspeed_config nowhere.json: no such file"):
        join_ranks(config(deepspeed_config="nowhere.json"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has fp16")
def test_fp16_needs_a_gpu():
    with pytest.raises(KinspanError, match="--precision fp16 needs a GPU"):
        make_engine(Linear(), config(precision="fp16"), Layout(8, 4, 1), None)
