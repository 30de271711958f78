"""Bottlenecks, their fusion and LoRA: against the papers' formulas, inside each family's encoder, and as folders."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.adapters import layers
from pretrain.modeling.adapters.folder import (
    find_model,
    fingerprint_encoder,
    load_adapted,
    load_base,
    read_adapter,
    wear,
)
from pretrain.modeling.adapters.layers import AdaptedNorm, AdapterPart, Bottleneck, Fusion, add_layers, list_norms
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.modeling.families import FAMILIES
from tests.adapters import write_random_adapter

CPU = torch.device("cpu")


def draw(module):
    """Parameters that are all different from zero."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def apply_bottleneck(b, h):
    """``U relu(D h + d) + u``, written out."""
    return torch.relu(h @ b.down.weight.T + b.down.bias) @ b.up.weight.T + b.up.bias


def test_a_bottleneck_is_as_pfeiffer_defines_it():
    """The block's output f and its input x, as a layer adds them: LN(f + x + B(LN(f + x)))."""
    torch.manual_seed(1)
    b, norm = draw(Bottleneck(8, 3)), draw(nn.LayerNorm(8))
    norm.__class__ = AdaptedNorm
    norm.parts = nn.ModuleList([b])
    f, x = torch.randn(2, 5, 8)
    ln = lambda s: F.layer_norm(s, (8,), norm.weight, norm.bias)  # noqa: E731
    assert torch.allclose(norm(f + x), ln(f + apply_bottleneck(b, ln(f + x)) + x), atol=1e-6)


def test_a_fusion_is_as_pfeiffer_defines_it():
    """softmax over adapters of (Q h) . (K z_t), a bias in K changing nothing; the sum of the z_t, without a value
    matrix."""
    torch.manual_seed(1)
    fusion = draw(Fusion(8, [3, 5, 2]))
    h, bias = torch.randn(7, 8), torch.randn(8)
    z = [apply_bottleneck(b, h) for b in fusion.of]
    query, keys = fusion.query(h), [zt @ fusion.key.weight + bias for zt in z]  # the matrix K is key.weight transposed
    shares = torch.softmax(torch.stack([(query * key).sum(-1) for key in keys], -1), -1)
    assert torch.allclose(fusion(h), sum(shares[:, t : t + 1] * z[t] for t in range(3)), atol=1e-5)


@pytest.mark.parametrize("family", layers.FAMILIES_WITH_BOTTLENECKS)
def test_an_untrained_adapter_is_the_plain_model_and_a_trained_one_keeps_pairs_apart(
    family, make_base, tiny_corpus, make_stream, score
):
    """In packed batches: the same bits; then, with numbers in it, the scores of ``transformers`` on each pair alone."""
    model, _ = load_adapter_model(str(make_base(family)), "pfeiffer", 6, [], "new", seed=1)
    model.eval()
    inputs = to_tensors(make_stream(tiny_corpus).batch(0, 6), CPU)

    @torch.no_grad()
    def score_packed():
        return model.score_pairs(model.encode(inputs), inputs["starts"])

    fresh, norms = score_packed(), list_norms(model.classifier.base_model)
    added = [norm.parts for norm in norms]
    for norm in norms:
        norm.parts = nn.ModuleList()
    assert torch.equal(fresh, score_packed())
    for norm, parts in zip(norms, added, strict=True):
        norm.parts = draw(parts)
    trained = score_packed()
    assert not torch.allclose(trained, fresh, atol=1e-3)
    model.classifier.set_attn_implementation("eager")
    assert torch.allclose(score(model.classifier), trained, atol=1e-4)


@pytest.mark.parametrize("family", ["albert", "modernbert"])
def test_families_without_a_place_are_refused(family, make_base):
    with pytest.raises(KinspanError, match="--adapter"):
        load_adapter_model(str(make_base(family)), "pfeiffer", 6, [], "new", seed=1)


@pytest.fixture(scope="module")
def make_adapter(base, tmp_path_factory):
    def make(name, **options):
        return write_random_adapter(tmp_path_factory.mktemp("adapters") / name, base, **options)

    return make


@pytest.fixture(scope="module")
def two(make_adapter):
    return make_adapter("beer", seed=1), make_adapter("travel", seed=2)


@pytest.fixture
def score(tiny_corpus, make_stream):
    """Scores of six pairs by the plain forward of ``transformers``."""
    batch = make_stream(tiny_corpus).batch(0, 6)
    inputs = to_tensors(batch, CPU)
    rows = [slice(a, b) for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]

    @torch.no_grad()
    def of(classifier):
        names = ["input_ids", "token_type_ids"][: 1 + FAMILIES[classifier.config.model_type].token_types]
        each = [{n: inputs[n][row][None].long() for n in names} for row in rows]
        return torch.stack([classifier.eval()(**tokens).logits[0, 0] for tokens in each])

    return of


def test_adapters_of_one_base_take_turns(two, base, score):
    """What a classifier wears leaves nothing behind: each adapter scores as in a model of its own."""
    alone = [score(load_adapted(str(folder))) for folder in two]
    assert not torch.allclose(*alone, atol=1e-3)
    classifier, _ = load_base(str(base))
    for folder, expected in [*zip(two, alone, strict=True), (two[0], alone[0])]:
        wear(classifier, read_adapter(folder))
        assert torch.equal(score(classifier), expected)


def test_a_folder_that_moves_with_its_base_finds_it_whatever_its_head(two, base, tmp_path, score):
    """The encoder is fingerprinted alone: a base with another head, of two labels, is the same base."""
    tree = tmp_path / "tree"
    shutil.copytree(base, tree / "models/bert")
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2, ignore_mismatched_sizes=True)
    model.save_pretrained(tree / "models/bert")
    shutil.copytree(two[0], tree / "adapters/beer")
    spec = json.loads((tree / "adapters/beer/adapter.json").read_text())
    spec["base"]["place"] = "../../models/bert"
    (tree / "adapters/beer/adapter.json").write_text(json.dumps(spec))
    tree.rename(tmp_path / "moved")
    moved = str(tmp_path / "moved/adapters/beer")
    assert find_model(moved) == str(tmp_path / "moved/models/bert")
    assert torch.equal(score(load_adapted(moved)), score(load_adapted(str(two[0]))))


def test_another_base_is_refused_by_both_names(two, make_base):
    with pytest.raises(KinspanError, match=f"--model .*{two[0]}"):
        load_adapter_model(str(make_base(seed=4)), "fusion", None, list(map(str, two)), "new", seed=1)


def test_a_base_is_its_weights_and_what_its_config_makes_of_them(base):
    encoder = load_base(str(base))[0].base_model
    fingerprint = fingerprint_encoder(encoder)
    assert fingerprint == fingerprint_encoder(load_base(str(base))[0].base_model)
    encoder.config.layer_norm_eps = 1e-3
    assert fingerprint_encoder(encoder) != fingerprint
    encoder.config.layer_norm_eps = 1e-12
    with torch.no_grad():
        encoder.pooler.dense.bias += 1  # of the head
        assert fingerprint_encoder(encoder) == fingerprint
        encoder.encoder.layer[1].output.dense.bias[0] += 1
        assert fingerprint_encoder(encoder) != fingerprint


def edit(**changes):
    def change(folder):
        spec = json.loads((folder / "adapter.json").read_text())
        (folder / "adapter.json").write_text(json.dumps(spec | changes))

    return change


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (edit(parts=[{"kind": "bottleneck", "name": "x", "size": 5}]), "adapter.safetensors"),
        (edit(base={"name": "x", "place": "../gone", "model_type": "bert", "fingerprint": ""}), "adapter.json"),
        (lambda folder: (folder / "adapter.json").write_text("{"), "adapter.json"),
        (lambda folder: (folder / "adapter.safetensors").write_bytes(b"x"), "adapter.safetensors"),
        (lambda folder: (folder / "pair_head.safetensors").unlink(), "pair_head.safetensors"),
    ],
)
def test_damage_is_named(change, file, two, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(two[0], folder)
    change(folder)
    with pytest.raises(KinspanError, match=f"broken/{file}"):
        load_adapted(str(folder))


def test_a_fusion_weighs_bottlenecks_alone(two, base, make_adapter):
    fused = make_adapter("fused", method="fusion", of=two)
    with pytest.raises(KinspanError, match=f"--adapters {fused}"):
        load_adapter_model(str(base), "fusion", None, [str(two[0]), str(fused)], "new", seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_starts_as_the_plain_model_and_merges_into_one(family, make_base, tmp_path):
    pytest.importorskip("peft")
    base = make_base(family)
    (plain, _), (fresh, _) = load_base(str(base)), load_base(str(base))
    add_layers(fresh.base_model, AdapterPart("lora", "new", 3))
    with torch.no_grad():
        ids = torch.arange(5, 12)[None]
        assert torch.equal(fresh.eval()(input_ids=ids).logits, plain.eval()(input_ids=ids).logits)
        folder = write_random_adapter(tmp_path / "lora", base, "lora", seed=2)
        worn, _ = load_base(str(base))
        wear(worn, read_adapter(folder))
        merged = load_adapted(str(folder))
        assert {n for n, _ in merged.named_parameters()} == {n for n, _ in plain.named_parameters()}
        merged_logits = merged.eval()(input_ids=ids).logits
        assert torch.allclose(merged_logits, worn.eval()(input_ids=ids).logits, atol=1e-4)
        assert not torch.allclose(merged_logits, plain(input_ids=ids).logits, atol=1e-4)
