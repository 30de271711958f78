"""Bottlenecks and their fusion: against the papers' formulas, and inside each family's encoder."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.adapters import bottleneck
from pretrain.modeling.adapters.bottleneck import AdaptedNorm, Bottleneck, Fusion, build_layers, list_norms
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.modeling.adapters.parts import AdapterPart

CPU = torch.device("cpu")


def draw(module):
    """Parameters that are all different from zero."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def norm_with(*parts, hidden=8):
    norm = draw(nn.LayerNorm(hidden))
    norm.__class__ = AdaptedNorm
    norm.parts = nn.ModuleList(parts)
    return norm


def narrow(b, h):
    """``U relu(D h + d) + u``, written out."""
    return torch.relu(h @ b.down.weight.T + b.down.bias) @ b.up.weight.T + b.up.bias


def test_a_bottleneck_is_as_pfeiffer_defines_it():
    """The block's output f and its input x, as a layer adds them: LN(f + x + B(LN(f + x)))."""
    torch.manual_seed(1)
    b = draw(Bottleneck(8, 3))
    norm = norm_with(b)
    f, x = torch.randn(2, 5, 8)
    ln = lambda s: F.layer_norm(s, (8,), norm.weight, norm.bias)  # noqa: E731
    assert torch.allclose(norm(f + x), ln(f + narrow(b, ln(f + x)) + x), atol=1e-6)


def test_a_stack_adds_one_part_after_another():
    torch.manual_seed(1)
    one, two = draw(Bottleneck(8, 3)), draw(Bottleneck(8, 5))
    norm = norm_with(one, two)
    s = torch.randn(5, 8)
    ln = lambda s: F.layer_norm(s, (8,), norm.weight, norm.bias)  # noqa: E731
    first = s + narrow(one, ln(s))
    assert torch.allclose(norm(s), ln(first + narrow(two, ln(first))), atol=1e-6)


def test_a_fusion_is_as_pfeiffer_defines_it():
    """softmax over adapters of (Q h) . (K z_t), a bias in K changing nothing; the sum of the z_t, without a value
    matrix."""
    torch.manual_seed(1)
    fusion = draw(Fusion(8, [3, 5, 2]))
    h, bias = torch.randn(7, 8), torch.randn(8)
    z = [narrow(b, h) for b in fusion.of]
    query, keys = fusion.query(h), [zt @ fusion.key.weight + bias for zt in z]  # the matrix K is key.weight transposed
    shares = torch.softmax(torch.stack([(query * key).sum(-1) for key in keys], -1), -1)
    assert torch.allclose(fusion(h), sum(shares[:, t : t + 1] * z[t] for t in range(3)), atol=1e-5)


@pytest.mark.parametrize("family", bottleneck.FAMILIES_WITH_BOTTLENECKS)
def test_an_untrained_adapter_is_the_plain_model_and_a_trained_one_keeps_pairs_apart(
    family, make_base, tiny_corpus, make_stream
):
    """In packed batches: the same bits; then, with numbers in it, the scores of ``transformers`` on each pair alone."""
    model, _ = load_adapter_model(str(make_base(family)), "pfeiffer", 6, [], "new", seed=1)
    model.eval()
    batch = make_stream(tiny_corpus).batch(0, 6)
    inputs, encoder = to_tensors(batch, CPU), model.classifier.base_model

    def score():
        with torch.no_grad():
            return model.score_pairs(model.encode(inputs), inputs["starts"])

    fresh, layers = score(), nn.ModuleList(norm.parts for norm in list_norms(encoder))
    names = {name for name, _ in encoder.named_parameters()}
    bottleneck.attach(encoder, nn.ModuleList(nn.ModuleList() for _ in layers))
    assert torch.equal(fresh, score())
    assert {name for name, _ in encoder.named_parameters()} == {n for n in names if ".parts." not in n}
    bottleneck.attach(encoder, draw(layers))
    trained = score()
    assert not torch.allclose(trained, fresh, atol=1e-3)
    plain = model.classifier
    plain.set_attn_implementation("eager")
    for k in range(batch.num_pairs):
        row = slice(batch.starts[k], batch.starts[k + 1])
        own = {"input_ids": inputs["input_ids"][row][None].long()}
        if model.family.token_types:
            own["token_type_ids"] = inputs["token_type_ids"][row][None].long()
        with torch.no_grad():
            assert torch.allclose(plain(**own).logits[0, 0], trained[k], atol=1e-4)


@pytest.mark.parametrize("family", ["albert", "modernbert"])
def test_families_without_a_place_are_refused_by_name(family, make_base):
    with pytest.raises(KinspanError, match=f"of the type {family}.*lora"):
        load_adapter_model(str(make_base(family)), "pfeiffer", 6, [], "new", seed=1)


def test_only_the_adapter_and_the_pair_head_are_trained(make_base, tiny_corpus, make_stream):
    model, _ = load_adapter_model(str(make_base()), "pfeiffer", 6, [], "new", seed=1)
    inputs = to_tensors(make_stream(tiny_corpus).batch(0, 6), CPU)
    loss, sums, _ = model(**inputs, scales={"pair": 1.0})
    loss.backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert with_gradient == {name for name, p in model.named_parameters() if p.requires_grad}
    head = {name for name in with_gradient if ".parts." not in name}
    assert head == {f"classifier.{n}.{w}" for n in ("bert.pooler.dense", "classifier") for w in ("weight", "bias")}
    assert len(with_gradient - head) == 2 * 4  # two layers of two matrices and two biases
    assert len(sums) == len(model.sum_names)


def test_a_bert_base_adapter_of_64_is_below_6_megabytes():
    class Base:
        hidden_size, num_hidden_layers = 768, 12

    with torch.device("meta"):
        layers = build_layers(Base, [AdapterPart("bottleneck", "travel", 64)])
    numbers = sum(parameter.numel() for parameter in layers.parameters())
    assert numbers == 12 * (2 * 64 * 768 + 64 + 768)
    assert 4 * numbers < 5e6
