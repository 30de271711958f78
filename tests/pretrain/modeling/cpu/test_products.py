"""Linear layers by oneDNN give what torch's do, and take their place without touching their parameters."""

import pytest
import torch
from torch import nn

from pretrain.modeling.cpu import products
from pretrain.modeling.cpu.products import Linear, replace_linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def as_ours(layer):
    ours = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    ours.load_state_dict(layer.state_dict())
    return ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 7, 24)])
def test_results_and_gradients_are_those_of_torch(shape, bias):
    torch.manual_seed(1)
    theirs = nn.Linear(24, 16, bias=bias)
    ours = as_ours(theirs)
    x = torch.randn(shape)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [layer(row) for layer, row in zip((ours, theirs), inputs, strict=True)]
    weights = torch.randn_like(outputs[0])
    for out in outputs:
        (out * weights).sum().backward()
    assert torch.allclose(*outputs, atol=1e-6)
    assert torch.allclose(inputs[0].grad, inputs[1].grad, atol=1e-5)
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad.shape == mine.shape
        assert torch.allclose(mine.grad, reference.grad, atol=1e-5)


def test_frozen_weights_get_no_gradient():
    layer = as_ours(nn.Linear(8, 4)).requires_grad_(False)
    x = torch.randn(3, 8, requires_grad=True)
    layer(x).sum().backward()  # the gradient of a sum has one number for all places
    assert torch.allclose(x.grad, layer.weight.sum(0).expand_as(x), atol=1e-6)
    assert layer.weight.grad is None


def test_autocast_is_left_to_torch():
    theirs = nn.Linear(8, 4)
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = as_ours(theirs)(x)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, theirs(x))


@pytest.mark.parametrize("preferred", [True, False])
def test_layers_are_replaced_where_that_is_faster(preferred, monkeypatch):
    monkeypatch.setattr(products, "prefers_onednn", lambda: preferred)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    model[2].weight = model[0].weight  # tied
    before = dict(model.named_parameters())
    replace_linear(model)
    assert [type(layer) is Linear for layer in model] == [preferred, False, preferred]
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert model[2].weight is model[0].weight
