"""The real DeepSpeed engine, in this process."""

import gc
from types import SimpleNamespace

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

from pretrain import step as steps
from pretrain.batches import to_tensors
from pretrain.checkpoints.writer import full_weights
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import adapt_loss_scaling
from pretrain.engine.engine import start_distributed
from pretrain.step import try_largest
from tests.pretrain.steps import make_run, set_up_alone, start_engine, take_step


def test_the_guard_ends_a_run_that_overflows_not_deepspeed():
    start_distributed()
    scaler = DynamicLossScaler(4, scale_window=1000, min_scale=1, delayed_shift=2, consecutive_hysteresis=False)
    adapt_loss_scaling(SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler)))
    for _ in range(30):
        scaler.update_scale(overflow=True)
    assert scaler.cur_scale == 1
    adapt_loss_scaling(SimpleNamespace(optimizer=SimpleNamespace()))


def trained(make_model, tiny_corpus, folder, stage, precision, probe=False):
    model = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    settings = {"max_length": None, "max_steps": 50, "deepspeed_config": f"ds_configs/{stage}.json"}
    setup, engine = start_engine(make_run(tiny_corpus, model, folder, precision=precision, **settings))
    if probe:
        try_largest(engine, setup.train_stream, setup.layout)
    result = [take_step(setup, engine, step) for step in range(3)][-1]
    return setup, engine, float(result.grad_norm)


@pytest.mark.parametrize(
    ("stage", "precision"),
    [("zero0", "fp32"), ("zero2", "fp32"), ("zero1", "bf16"), ("zero2", "bf16"), ("slow_network", "bf16")],
)
def test_saved_weights_are_those_that_score(stage, precision, make_model, tiny_corpus, tmp_path, capsys):
    setup, engine, _ = trained(make_model, tiny_corpus, tmp_path / "run", stage, precision)
    assert "GB" not in capsys.readouterr().out, "DeepSpeed reports on its memory"
    assert engine.communication_data_type == (torch.bfloat16 if stage == "slow_network" else torch.float32)
    weights = full_weights(engine)
    batch = setup.train_stream.batch(500, 10)
    engine.eval()
    with torch.no_grad():
        before = engine.module.logits(to_tensors(batch, torch.device("cpu")))[0]
        for name, parameter in engine.module.named_parameters():
            assert weights[name].dtype == torch.float32
            assert torch.equal(weights[name].to(parameter.dtype), parameter), name
            parameter.copy_(weights[name])
        after = engine.module.logits(to_tensors(batch, torch.device("cpu")))[0]
    assert torch.equal(before, after)
    if precision == "bf16":
        assert any(not torch.equal(w, w.bfloat16().float()) for w in weights.values()), "the master copy was rounded"


@pytest.mark.parametrize("stage", ["zero0", "zero2", "zero3", "offload"])
def test_trying_the_largest_batch_changes_nothing_and_no_step_waits_for_the_device(
    stage, make_model, tiny_corpus, tmp_path, monkeypatch
):
    """Adam's moments are reserved for the trial; ZeRO 3 has made them by then."""
    waits, reserved = [], []
    gc.collect()  # an engine of another test waits for the device as it is collected
    accelerator = get_accelerator()
    monkeypatch.setattr(accelerator, "synchronize", lambda *_: waits.append(stage))
    reserve = steps.reserve_moments
    monkeypatch.setattr(steps, "reserve_moments", lambda optimizer: reserved.append(reserve(optimizer)) or [])
    tried, plain = (
        trained(make_model, tiny_corpus, tmp_path / str(probe), stage, "fp32", probe) for probe in (True, False)
    )
    assert not waits
    states = tried[1].optimizer.state.values()
    made = sum(s["exp_avg"].numel() + s["exp_avg_sq"].numel() for s in states)
    assert sum(tensor.numel() for tensor in reserved[0]) == (0 if stage == "zero3" else made)
    assert tried[2] == plain[2]
    one, two = full_weights(tried[1]), full_weights(plain[1])
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_norm_is_that_of_a_plain_gradient(make_model, tiny_corpus, tmp_path):
    """The first gradient of the engine, uneven micro-batches and all, against one backward of the mean losses."""
    setup, engine, _ = trained(make_model, tiny_corpus, tmp_path / "run", "zero2", "fp32")
    weights = full_weights(engine)
    norm = float(take_step(setup, engine, 3).grad_norm)
    model = set_up_alone(setup.config).model
    model.load_state_dict(weights, strict=False)
    batch = setup.train_stream.batch(30, 10)
    pair, vocabulary = model.logits(to_tensors(batch, torch.device("cpu")))
    loss = torch.nn.functional.cross_entropy(vocabulary, torch.from_numpy(batch.masked_labels))
    labels = torch.from_numpy(batch.labels).float()
    (loss + torch.nn.functional.binary_cross_entropy_with_logits(pair, labels)).backward()
    plain = torch.stack([p.grad.double().square().sum() for p in model.parameters()]).sum().sqrt()
    assert norm == pytest.approx(float(plain), rel=1e-4)


def test_the_watchdog_is_faster_than_the_timeouts_of_collectives():
    """Else NCCL ends a stalled run, and names no rank."""
    start_distributed()
    group = torch.distributed.new_group(backend="gloo")
    ranks.extend_timeouts(group)
    for each in (group, torch.distributed.group.WORLD):
        assert each._get_backend(torch.device("cpu")).options._timeout == ranks.TIMEOUT
