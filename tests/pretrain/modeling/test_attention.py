"""Packed attention: each way of computing it against each sequence by itself."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling import attention
from pretrain.modeling.attention import attend_packed
from pretrain.modeling.cpu import attention as cpu_attention
from pretrain.modeling.cpu.dropout import current_masks, decide_dropout
from pretrain.modeling.encoder import pads_sequences, prepare_encoder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.packing import Packing
from pretrain.modeling.pair_model import load_model
from tests.flash_on_cpu import flash_on_cpu
from tests.pretrain.conftest import make_config

CPU = torch.device("cpu")
LENGTHS = [5, 1, 12, 7]
HEADS, WIDTH, PADDING = 3, 8, 7
INTERFACE = [name for name, family in FAMILIES.items() if family.encode is None]


@pytest.fixture
def packing():
    starts = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in LENGTHS]).int()
    return Packing.of(starts, positions, max(LENGTHS), PADDING)


@pytest.fixture
def _flash():
    with flash_on_cpu():
        yield


def draw(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    shape = (1, HEADS, sum(LENGTHS) + PADDING, WIDTH)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


def alone(query, key, value, scale, window=None):
    """Each sequence by torch's own attention, one after another, ``[1, T, heads, width]``."""
    out, first = [], 0
    for length in LENGTHS:
        q, k, v = (x[:, :, first : first + length] for x in (query, key, value))
        place = torch.arange(length)
        near = None if window is None else (place[:, None] - place).abs() < window
        out.append(F.scaled_dot_product_attention(q, k, v, attn_mask=near, scale=scale))
        first += length
    return torch.cat(out, 2).transpose(1, 2)


@pytest.mark.usefixtures("_flash")
@pytest.mark.parametrize("how", ["each", "padded", "flash"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_each_sequence_attends_to_itself_alone(packing, how, window, scale, monkeypatch):
    if how != "each":  # as on a GPU, where nobody knows the bounds
        packing = replace(packing, bounds=None)
        monkeypatch.setattr(attention, "_flash" if how == "padded" else "_padded", None)
    dtype, near = (torch.bfloat16, 2e-2) if how == "flash" else (torch.float64, 1e-12)
    inputs, others = draw(dtype=dtype), draw(dtype=dtype)
    out, _ = attend_packed(torch.nn.Module(), *inputs, None, scale, packing=packing, sliding_window=window)
    assert out.shape == (1, sum(LENGTHS) + PADDING, HEADS, WIDTH)
    expected = alone(*others, WIDTH**-0.5 if scale is None else scale, window)
    assert torch.allclose(out[:, : sum(LENGTHS)], expected, atol=near)
    weights = torch.randn(expected.shape, dtype=dtype)
    (out[:, : sum(LENGTHS)] * weights).sum().backward()
    (expected * weights).sum().backward()
    for ours, theirs in zip(inputs, others, strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=near * 5)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [WIDTH, WIDTH + 4])
def test_the_layout_knows_what_attention_pads(packing, capability, dtype, width, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(attention, "_has_flash", None)
    attention.find_flash()
    used = []
    for name in ("_flash", "_padded"):
        monkeypatch.setattr(attention, name, lambda q, *_, name=name: used.append(name) or q)
    states = [torch.zeros(1, HEADS, 5, width, dtype=dtype)] * 3
    attend_packed(torch.nn.Module(), *states, None, packing=replace(packing, bounds=None))
    config = make_config("bert", hidden_size=HEADS * width, num_attention_heads=HEADS)
    assert pads_sequences(SimpleNamespace(config=config), dtype) == (used == ["_padded"])


def test_with_dropout_the_gradient_is_that_of_what_was_computed(packing):
    def attend(*inputs):
        with decide_dropout(1, 2, 3, np.arange(len(LENGTHS))):
            current_masks().place_tokens(packing.sequence, packing.position, packing.padding)
            return attend_packed(torch.nn.Module(), *inputs, None, packing=packing, dropout=0.3, sliding_window=4)[0]

    inputs = draw()
    assert not torch.allclose(attend(*inputs)[:, : sum(LENGTHS)], alone(*inputs, WIDTH**-0.5, 4), atol=1e-2)
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True)


def test_dropout_keeps_the_mean(packing):
    """Averaged over steps, what is dropped and scaled comes to what is not."""
    inputs = [x.detach() for x in draw()]
    whole, _ = attend_packed(torch.nn.Module(), *inputs, None, packing=packing)
    total = torch.zeros_like(whole)
    for step in range(800):
        with decide_dropout(1, step, 0, np.arange(len(LENGTHS))):
            current_masks().place_tokens(packing.sequence, packing.position, packing.padding)
            total += attend_packed(torch.nn.Module(), *inputs, None, packing=packing, dropout=0.2)[0]
    assert (total / 800 - whole).abs().max() < 0.15
    assert (total / 800 - whole).abs().mean() < 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_dropout_reaches_packed_attention(family, make_model, tiny_corpus, make_stream, monkeypatch):
    rate = "attention_dropout" if family in ("distilbert", "modernbert") else "attention_probs_dropout_prob"
    model, _ = load_model(str(make_model(family, **{rate: 0.25})), seed=3)
    seen, begin = [], cpu_attention._start_dropout
    monkeypatch.setattr(cpu_attention, "_start_dropout", lambda *args: seen.append(args[-1]) or begin(*args))
    batch = make_stream(tiny_corpus, masking=True).batch(0, 4)
    with decide_dropout(1, 2, 3, batch.index):
        model.logits(to_tensors(batch, CPU))
    assert set(seen) == {0.25}
    seen.clear()
    model.eval().logits(to_tensors(batch, CPU))
    assert set(seen) == {0.0}


@pytest.mark.parametrize("family", INTERFACE)
def test_a_model_that_does_not_switch_is_noticed(family, make_model):
    model, _ = load_model(str(make_model(family)), seed=3)
    model.classifier.set_attn_implementation("eager")
    with pytest.raises(KinspanError, match="did not use packed attention: 0 calls"):
        prepare_encoder(model, model.classifier.base_model)
