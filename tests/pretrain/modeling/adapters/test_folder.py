"""Adapters as folders: written, found beside their base, loaded, combined, refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.adapters import lora
from pretrain.modeling.adapters.folder import (
    Adapter,
    Base,
    find_model,
    fingerprint_encoder,
    load_adapted,
    load_base,
    name_head,
    name_parts,
    place_of_base,
    put_in,
    read_adapter,
    wear,
    write_tensors,
)
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.modeling.adapters.parts import AdapterPart
from pretrain.modeling.families import FAMILIES

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def make_adapter(make_base, tmp_path_factory):
    """``make_adapter(name, base, seed)``: a folder of an adapter whose numbers are drawn."""

    def make(name, base, seed=1, method="pfeiffer", beneath=(), size=None):
        model, _ = load_adapter_model(str(base), method, size, [str(b) for b in beneath], name, seed)
        torch.manual_seed(seed)
        for parameter in (*model.name_trained().values(), *name_head(model.classifier).values()):
            torch.nn.init.normal_(parameter, std=0.2)
        folder = tmp_path_factory.mktemp("adapters") / name
        folder.mkdir()
        own = Base(base.name, place_of_base(str(base), folder), model.config.model_type, model.base)
        tensors, head = name_parts(model.classifier.base_model, model.parts), name_head(model.classifier)
        values = ({key: p.detach().clone() for key, p in found.items()} for found in (tensors, head))
        write_tensors(Adapter(folder, model.parts, own, *values), folder, own)
        (folder / "kinspan.json").write_text("{}")
        return folder

    return make


@pytest.fixture(scope="session")
def base(make_base):
    return make_base()


@pytest.fixture(scope="session")
def two(make_adapter, base):
    return make_adapter("beer", base, 1, size=4), make_adapter("travel", base, 2, size=4)


@pytest.fixture
def score(tiny_corpus, make_stream):
    """Scores of six pairs by the plain forward of ``transformers``."""
    batch = make_stream(tiny_corpus).batch(0, 6)
    inputs = to_tensors(batch, CPU)
    rows = [slice(a, b) for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]

    @torch.no_grad()
    def of(classifier):
        own = [{n: inputs[n][row][None].long() for n in ("input_ids", "token_type_ids")} for row in rows]
        return torch.stack([classifier.eval()(**one).logits[0, 0] for one in own])

    return of


def test_adapters_of_one_base_take_turns(two, base, score):
    """What a classifier wears leaves nothing behind: each adapter scores as in a model of its own."""
    alone = [score(load_adapted(str(folder))) for folder in two]
    assert not torch.allclose(*alone, atol=1e-3)
    classifier, _ = load_base(str(base))
    for folder, expected in [*zip(two, alone, strict=True), (two[0], alone[0])]:
        wear(classifier, read_adapter(folder))
        assert torch.equal(score(classifier), expected)


def test_a_folder_that_moves_with_its_base_still_finds_it(two, base, tmp_path, score):
    tree = tmp_path / "tree"
    here = load_adapted(str(two[0]))
    shutil.copytree(base, tree / "models/bert")
    shutil.copytree(two[0], tree / "adapters/beer")
    spec = json.loads((tree / "adapters/beer/adapter.json").read_text())
    spec["base"]["place"] = "../../models/bert"
    (tree / "adapters/beer/adapter.json").write_text(json.dumps(spec))
    tree.rename(tmp_path / "moved")
    moved = tmp_path / "moved/adapters/beer"
    assert find_model(str(moved)) == str(tmp_path / "moved/models/bert")
    assert torch.equal(score(load_adapted(str(moved))), score(here))


def test_another_base_is_refused_by_both_names(two, make_base):
    other = make_base(seed=4)
    adapter = read_adapter(two[0])
    with pytest.raises(KinspanError, match=f"--model .*{adapter.folder}"):
        load_adapter_model(str(other), "fusion", None, list(map(str, two)), "new", seed=1)


def test_a_base_is_its_weights_and_what_its_config_makes_of_them(base):
    classifier, _ = load_base(str(base))
    encoder = classifier.base_model
    own = fingerprint_encoder(encoder)
    assert own == fingerprint_encoder(load_base(str(base))[0].base_model)
    encoder.config.layer_norm_eps = 1e-3
    assert fingerprint_encoder(encoder) != own
    encoder.config.layer_norm_eps = 1e-12
    with torch.no_grad():
        encoder.pooler.dense.bias += 1  # of the head
        assert fingerprint_encoder(encoder) == own
        encoder.encoder.layer[1].output.dense.bias[0] += 1
        assert fingerprint_encoder(encoder) != own


def test_a_head_of_the_base_does_not_make_it_another(make_base, two, base, tmp_path, score):
    """The encoder is fingerprinted alone: a base with another head, of two labels, is the same base."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2, ignore_mismatched_sizes=True)
    shutil.copytree(base, tmp_path / "base")
    model.save_pretrained(tmp_path / "base")
    shutil.copytree(two[0], tmp_path / "beer")
    spec = json.loads((tmp_path / "beer/adapter.json").read_text())
    spec["base"]["place"] = "../base"
    (tmp_path / "beer/adapter.json").write_text(json.dumps(spec))
    assert torch.equal(score(load_adapted(str(tmp_path / "beer"))), score(load_adapted(str(two[0]))))


def test_damage_is_named(two, tmp_path):
    def broken(name, change):
        folder = tmp_path / name
        shutil.copytree(two[0], folder)
        change(folder)
        return str(folder)

    def edit(folder, **changes):
        spec = json.loads((folder / "adapter.json").read_text())
        (folder / "adapter.json").write_text(json.dumps(spec | changes))

    def drop(folder):
        tensors = load_file(str(folder / "adapter.safetensors"))
        tensors.pop("1.0.up.bias")
        save_file(tensors, str(folder / "adapter.safetensors"))

    def rename(folder, name):
        tensors = load_file(str(folder / "adapter.safetensors"))
        tensors[name] = tensors.pop("1.0.up.bias")
        save_file(tensors, str(folder / "adapter.safetensors"))

    def poison(folder):
        tensors = load_file(str(folder / "adapter.safetensors"))
        tensors["1.0.up.bias"][0] = float("nan")
        save_file(tensors, str(folder / "adapter.safetensors"))

    gone = {"name": "x", "place": "../gone", "model_type": "bert", "fingerprint": ""}
    for number, (change, named) in enumerate(
        [
            (lambda f: edit(f, format=9), "adapter.json"),
            (lambda f: edit(f, parts=[]), "adapter.json"),
            (lambda f: edit(f, parts=[{"kind": "pill", "name": "x", "size": 4}]), "adapter.json"),
            (lambda f: edit(f, parts=[{"kind": "bottleneck", "name": "x", "size": 5}]), "adapter.safetensors"),
            (lambda f: edit(f, base={"name": "x"}), "adapter.json"),
            (lambda f: edit(f, base=gone), "adapter.json"),
            (lambda f: (f / "adapter.json").write_text("{"), "adapter.json"),
            (lambda f: (f / "adapter.safetensors").write_bytes(b"x"), "adapter.safetensors"),
            (lambda f: (f / "pair_head.safetensors").unlink(), "pair_head.safetensors"),
            (lambda f: rename(f, "beyond"), "adapter.safetensors"),
            (drop, "adapter.safetensors"),
            (poison, "adapter.safetensors"),
        ]
    ):
        with pytest.raises(KinspanError, match=f"{number}/{named}"):
            load_adapted(broken(str(number), change))


def test_a_fusion_of_one_and_its_twin_is_that_one(two, base, make_adapter, score):
    """Shares sum to one: two equal bottlenecks give what either gives, whatever the query and key."""
    fused = read_adapter(make_adapter("fused", base, 5, method="fusion", beneath=[two[0], two[0]]))
    classifier, _ = load_base(str(base))
    wear(classifier, read_adapter(two[0]))
    head = name_head(classifier)
    expected = score(classifier)
    wear(
        classifier,
        Adapter(fused.folder, fused.parts, fused.base, fused.tensors, {n: p.detach() for n, p in head.items()}),
    )
    assert torch.allclose(score(classifier), expected, atol=1e-5)


def test_a_fusion_weighs_bottlenecks_alone(two, base, make_adapter):
    fused = make_adapter("fused", base, 5, method="fusion", beneath=two)
    with pytest.raises(KinspanError, match=f"--adapters {fused}"):
        load_adapter_model(str(base), "fusion", None, [str(two[0]), str(fused)], "new", seed=1)


def test_every_family_has_a_place_for_lora():
    assert lora.TARGETS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", lora.TARGETS)
def test_lora_starts_as_the_plain_model_and_merges_into_one(family, make_base, make_adapter, score):
    pytest.importorskip("peft")
    base = make_base(family)
    (plain, _), (fresh, _) = load_base(str(base)), load_base(str(base))
    put_in(fresh, (AdapterPart("lora", "new", 3),))
    with torch.no_grad():
        ids = torch.arange(5, 12)[None]
        assert torch.equal(fresh.eval()(input_ids=ids).logits, plain.eval()(input_ids=ids).logits)
        folder = make_adapter("merged", base, 2, method="lora", size=3)
        worn, _ = load_base(str(base))
        wear(worn, read_adapter(folder))
        merged = load_adapted(str(folder))
        assert {n for n, _ in merged.named_parameters()} == {n for n, _ in plain.named_parameters()}
        merged_logits = merged.eval()(input_ids=ids).logits
        assert torch.allclose(merged_logits, worn.eval()(input_ids=ids).logits, atol=1e-4)
        assert not torch.allclose(merged_logits, plain(input_ids=ids).logits, atol=1e-4)
