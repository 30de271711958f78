"""Adapters as folders: written, found beside their base, loaded, combined, refused."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.adapters import lora
from pretrain.modeling.adapters.combine import average, stack, write_tensors
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
)
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.modeling.adapters.parts import AdapterPart
from pretrain.modeling.families import FAMILIES
from pretrain.release.adapter import write_combined

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
    with pytest.raises(KinspanError, match=f"beside .*{adapter.base.fingerprint[:12]}.*has other weights"):
        load_adapter_model(str(other), "pfeiffer", None, [str(two[0])], "new", seed=1)


def test_a_frozen_adapter_beneath_a_new_one_is_named(two, base):
    _, [note, *_] = load_adapter_model(str(base), "pfeiffer", None, [str(two[0])], "new", seed=1)
    frozen, trained = note.split(" is frozen; trained are ")
    assert f"({read_adapter(two[0]).name})" in frozen
    assert trained.endswith("(new)")


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

    for number, (change, said) in enumerate(
        [
            (lambda f: edit(f, format=9), "format 9"),
            (lambda f: edit(f, parts=[]), "damaged"),
            (lambda f: edit(f, parts=[{"kind": "pill", "name": "x", "size": 4}]), "damaged"),
            (lambda f: edit(f, parts=[{"kind": "bottleneck", "name": "x", "size": 5}]), "does not fit"),
            (lambda f: edit(f, base={"name": "x"}), "which base"),
            (
                lambda f: edit(f, base={"name": "x", "place": "../gone", "model_type": "bert", "fingerprint": ""}),
                "no longer",
            ),
            (lambda f: (f / "adapter.json").write_text("{"), "damaged"),
            (lambda f: (f / "adapter.safetensors").write_bytes(b"x"), "cannot be read"),
            (lambda f: (f / "pair_head.safetensors").unlink(), "cannot be read"),
            (lambda f: edit(f, parts=[{"kind": "bottleneck", "name": "x", "size": 10**12}]), "does not fit"),
            (lambda f: rename(f, "beyond"), "see its beyond"),
            (lambda f: rename(f, "1.7.up.bias"), "see its 1.7.up.bias"),
            (drop, "1.0.up.bias"),
            (poison, "not finite"),
        ]
    ):
        with pytest.raises(KinspanError, match=said):
            load_adapted(broken(str(number), change))


def test_a_stack_of_two_is_as_if_the_second_were_trained_on_the_first(two, base, make_adapter, tmp_path, score):
    top = make_adapter("top", base, 5, beneath=[two[0]], size=3)
    adapter = read_adapter(top)
    alone = {f"{n.split('.')[0]}.0.{n.split('.', 2)[2]}": t for n, t in adapter.tensors.items() if n[2] == "1"}
    single = Adapter(tmp_path, adapter.parts[1:], adapter.base, alone, adapter.head)
    stacked = stack([read_adapter(two[0]), single], tmp_path)
    assert stacked.parts == adapter.parts
    assert stacked.tensors.keys() == adapter.tensors.keys()
    assert all(torch.equal(stacked.tensors[n], adapter.tensors[n]) for n in adapter.tensors)


@pytest.mark.parametrize("beneath", [0, 1])
def test_a_fusion_on_top_of_a_stack_is_the_fusion_that_was_trained(beneath, two, base, make_adapter, tmp_path, score):
    """Its bottlenecks keep their places, and the folder loads."""
    fused = make_adapter("fused", base, 5, method="fusion", beneath=two)
    below = two[:beneath]
    write_combined([*below, fused], "stack", [], tmp_path / "stack")
    stacked, own = read_adapter(tmp_path / "stack"), read_adapter(fused)
    assert [part.kind for part in stacked.parts] == [*["bottleneck"] * beneath, "fusion"]
    for name, tensor in own.tensors.items():
        layer, _, rest = name.split(".", 2)
        assert torch.equal(stacked.tensors[f"{layer}.{beneath}.{rest}"], tensor)
    scores = score(load_adapted(str(tmp_path / "stack")))
    assert torch.equal(scores, score(load_adapted(str(fused)))) == (not beneath)


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


def test_averages(two, tmp_path):
    one, other = map(read_adapter, two)
    made = average([one, other], [3, 1], tmp_path)
    for name, tensor in made.tensors.items():
        assert torch.allclose(tensor, 0.75 * one.tensors[name] + 0.25 * other.tensors[name])
    assert torch.allclose(
        made.head["classifier.bias"], 0.75 * one.head["classifier.bias"] + 0.25 * other.head["classifier.bias"]
    )
    for weights in ([1], [1, -1], [0, 0], [float("nan"), 1], [1, float("nan")], [float("inf"), 1]):
        with pytest.raises(KinspanError, match="--weights"):
            average([one, other], weights, tmp_path)


def test_a_combination_is_a_folder_that_loads(two, tmp_path, score):
    write_combined(two, "average", [], tmp_path / "out/average")
    write_combined(two, "stack", [], tmp_path / "out/stack")
    write_combined([two[0], two[0]], "average", [], tmp_path / "out/average")  # replaces it
    assert torch.allclose(
        score(load_adapted(str(tmp_path / "out/average"))), score(load_adapted(str(two[0]))), atol=1e-6
    )
    assert [part.name for part in read_adapter(tmp_path / "out/stack").parts] == ["beer", "travel"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(KinspanError, match="no release"):
        write_combined(two, "stack", [], tmp_path / "mine")
    assert (tmp_path / "mine/notes.txt").exists()


def test_what_does_not_go_together_is_refused(two, base, make_adapter, make_base, tmp_path):
    wide = make_adapter("wide", base, 1, size=7)
    elsewhere = make_adapter("elsewhere", make_base(seed=9), 1, size=4)
    with pytest.raises(KinspanError, match="one shape"):
        average([read_adapter(two[0]), read_adapter(wide)], None, tmp_path)
    other = read_adapter(two[1])
    with pytest.raises(KinspanError, match="one shape"):
        average([read_adapter(two[0]), replace(other, head={"classifier.bias": torch.zeros(1)})], None, tmp_path)
    with pytest.raises(KinspanError, match="one base"):
        stack([read_adapter(two[0]), read_adapter(elsewhere)], tmp_path)
    fused = make_adapter("fused", base, 5, method="fusion", beneath=two)
    with pytest.raises(KinspanError, match="no single bottleneck"):
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


def test_the_average_of_lora_adds_the_mean_of_what_each_adds(make_base, make_adapter, tmp_path):
    pytest.importorskip("peft")
    base = make_base()
    one, other = (read_adapter(make_adapter(f"l{k}", base, k, method="lora", size=k + 1)) for k in (1, 2))
    made = average([one, other], [1, 3], tmp_path)
    assert made.parts[0].size == 5
    for name in (n.removesuffix("lora_A.weight") for n in made.tensors if n.endswith("lora_A.weight")):
        products = [a.tensors[f"{name}lora_B.weight"] @ a.tensors[f"{name}lora_A.weight"] for a in (one, other, made)]
        assert torch.allclose(products[2], 0.25 * products[0] + 0.75 * products[1], atol=1e-6)
