"""Updates decided on the device, against DeepSpeed's, and that the host waits for none."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.checkpoints.writer import full_weights
from pretrain.engine import engine as engines
from tests.pretrain.steps import make_run, start_engine, take_step

ROOT = Path(__file__).resolve().parents[3]


class Watch(TorchDispatchMode):
    """Counts the operators that read a number on the host, which waits for the device, and notes all names."""

    def __init__(self):
        super().__init__()
        self.waits, self.names = Counter(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.names.add(name)
        masks = name == "index" and any(getattr(i, "dtype", None) in (torch.bool, torch.uint8) for i in args[1])
        if masks or name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2"):
            self.waits[name] += 1
        return func(*args, **kwargs or {})


@pytest.fixture
def config(make_model, tiny_corpus, tmp_path):
    def make(stage, precision, **settings):
        settings = {"deepspeed_config": f"ds_configs/{stage}.json", "global_batch_size": 12} | settings
        settings |= {"precision": precision}
        return make_run(tiny_corpus, make_model("roberta"), tmp_path / "run", **settings)

    return make


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05, 1e6])
@pytest.mark.parametrize(("stage", "precision"), [("zero0", "fp32"), ("zero1", "bf16")])
def test_an_update_is_that_of_deepspeed(stage, precision, max_grad_norm, config, monkeypatch):
    """To the last bit where nothing is clipped; else but for the norm, whose fourth digit DeepSpeed loses on a CPU."""
    settings = config(stage, precision, max_grad_norm=max_grad_norm)

    def train(steps):
        setup, engine = start_engine(settings)
        norms = [float(take_step(setup, engine, step).grad_norm) for step in range(steps)]
        return norms, full_weights(engine)

    norms, ours = train(3)
    monkeypatch.setattr(engines, "update_on_device", lambda engine: None)
    if stage == "zero0":
        monkeypatch.setattr("pretrain.engine.deepspeed_compat.clip_on_device", lambda *_: None)
    expected, theirs = train(3)
    assert norms == pytest.approx(expected, rel=5e-4)
    if max_grad_norm != 0.05:
        assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    whole = [torch.cat([weights[name].flatten() for name in theirs]) for weights in (ours, theirs)]
    assert (whole[0] - whole[1]).norm() <= 1e-3 * whole[1].norm()


@pytest.mark.parametrize(("stage", "precision"), [("zero0", "fp32"), ("zero1", "bf16")])
def test_the_host_waits_for_no_micro_batch_and_no_update(stage, precision, config):
    setup, engine = start_engine(config(stage, precision))
    take_step(setup, engine, 0)  # makes Adam's moments
    with Watch() as operators:
        result = take_step(setup, engine, 1)
    assert not operators.waits
    assert "_fused_adamw_" in operators.names
    assert not result.skipped


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_a_loss_scale_that_grows_changes_no_gradient(stage, config, monkeypatch, tmp_path):
    """In fp16, which only the settings refuse on a CPU; the norm is clipped."""
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    monkeypatch.setattr("pretrain.setup.choose_precision", lambda requested, stage: requested)
    settings = json.loads((ROOT / f"ds_configs/{stage}.json").read_text())

    def train(window):
        path = tmp_path / f"{window}.json"
        path.write_text(json.dumps(settings | {"fp16": {"initial_scale_power": 4, "loss_scale_window": window}}))
        setup, engine = start_engine(config(stage, "fp16", max_grad_norm=1.2, deepspeed_config=str(path)))
        norms = [float(take_step(setup, engine, step).grad_norm) for step in range(3)]
        moments = torch.cat([state["exp_avg"].flatten() for state in engine.optimizer.state.values()])
        return norms, moments, engine.optimizer.loss_scaler.cur_scale

    (norms, moments, scale), (expected, plain, same) = train(2), train(1000)
    assert (scale, same) == (32, 16)
    assert norms == pytest.approx(expected, rel=1e-2)
    assert (moments - plain).norm() <= 1e-2 * plain.norm()
