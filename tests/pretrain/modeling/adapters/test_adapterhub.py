"""Folders in the format of AdapterHub, one of them made by its own library: see published/make.py."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from data_pipeline.errors import KinspanError
from pretrain.modeling.adapters.adapterhub import CONFIG, HEAD, HEAD_CONFIG, SAFE_TENSORS, TENSORS, read_published
from pretrain.modeling.adapters.combine import average
from pretrain.modeling.adapters.folder import read_adapter
from pretrain.modeling.adapters.load import load_adapted
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.release.converted import convert_adapter
from tests.pretrain.modeling.adapters.published import make

PUBLISHED = Path(make.__file__).parent / "beer"
EXPECTED = json.loads((Path(make.__file__).parent / "expected.json").read_text())
INPUTS = {"input_ids": torch.tensor(make.IDS), "token_type_ids": torch.tensor(make.TYPES)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The base of the published adapter."""
    folder = tmp_path_factory.mktemp("published") / "made-bert"
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", num_labels=1, **make.CONFIG))
    make.fill_encoder(model.base_model)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    """A copy of the published adapter, to be changed."""
    return Path(shutil.copytree(PUBLISHED, tmp_path / "beer"))


def change(path, **options):
    """Changes a config file's options; ``None`` takes one away."""
    content = json.loads(path.read_text())
    content["config"] = {k: v for k, v in (content["config"] | options).items() if v is not None}
    path.write_text(json.dumps(content))


@torch.no_grad()
def run(classifier):
    hidden = classifier.base_model(**INPUTS)[0]
    return hidden, classifier(**INPUTS).logits[:, 0]


def test_hidden_states_and_scores_are_those_of_its_library(base, tmp_path):
    said = convert_adapter(PUBLISHED, base, tmp_path / "ours")
    assert not any("no head" in line for line in said)
    hidden, logits = run(load_adapted(str(tmp_path / "ours")).eval())
    expected, plain = torch.tensor(EXPECTED["hidden"]), torch.tensor(EXPECTED["plain"])
    assert (expected - plain).abs().max() > 0.1  # the adapter does something
    assert torch.allclose(hidden, expected, atol=1e-5)
    assert torch.allclose(logits, torch.tensor(EXPECTED["logits"]).diff()[:, 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["layer_text_task_adapters", "layer_text_lang_adapters"])
def test_old_names_of_tensors_and_options_are_read(kind, folder):
    now = read_published(folder)
    tensors = torch.load(folder / TENSORS, weights_only=True)
    torch.save(
        {name.replace("adapters.beer", f"{kind}.beer"): value for name, value in tensors.items()}, folder / TENSORS
    )
    options = {"mh_adapter": None, "MH_Adapter": False, "output_adapter": None, "Output_Adapter": True}
    change(folder / CONFIG, **options, invertible_adapter={"block_type": "nice", "reduction_factor": 2})
    old = read_published(folder)
    assert all(torch.equal(now.tensors[name], old.tensors[name]) for name in now.tensors)
    assert len(now.tensors) == len(old.tensors) == 8


def test_safetensors_are_read_first(folder):
    tensors = torch.load(folder / TENSORS, weights_only=True)
    save_file({name: value + 1 for name, value in tensors.items()}, folder / SAFE_TENSORS)
    now, before = read_published(folder), read_published(PUBLISHED)
    assert torch.equal(now.tensors["0.0.up.bias"], before.tensors["0.0.up.bias"] + 1)


def test_there_and_back_is_the_same(base, tmp_path):
    convert_adapter(PUBLISHED, base, tmp_path / "ours")
    convert_adapter(tmp_path / "ours", None, tmp_path / "theirs")
    one, two = read_adapter(tmp_path / "ours"), read_published(tmp_path / "theirs")
    assert two.tensors.keys() == one.tensors.keys()
    assert all(torch.equal(one.tensors[name], two.tensors[name]) for name in one.tensors)
    assert all(torch.equal(one.head[name], two.head[name]) for name in one.head)
    first, again = (json.loads((place / CONFIG).read_text()) for place in (PUBLISHED, tmp_path / "theirs"))
    assert again["config"]["reduction_factor"] == first["config"]["reduction_factor"]
    theirs = torch.load(PUBLISHED / TENSORS, weights_only=True)
    assert torch.load(tmp_path / "theirs" / TENSORS, weights_only=True).keys() == theirs.keys()
    assert {key: first["config"][key] for key in again["config"]} == again["config"]


def test_an_adapter_without_a_head_is_for_fusion_and_ranks_nothing(base, folder, tmp_path):
    change(folder / HEAD_CONFIG, activation_function="gelu")
    said = convert_adapter(folder, base, tmp_path / "one")
    assert "no head that could be a pair head" in said[-1]
    with pytest.raises(KinspanError, match="has no pair head"):
        load_adapted(str(tmp_path / "one"))
    convert_adapter(PUBLISHED, base, tmp_path / "two")
    both = [str(tmp_path / name) for name in ("one", "two")]
    model, _ = load_adapter_model(base, "fusion", None, both, "fused", seed=1)
    assert [one.name for one in model.parts[0].of] == ["beer", "beer"]
    with pytest.raises(KinspanError, match="only such can be averaged"):
        average([read_adapter(name) for name in both], None, tmp_path / "mean")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"non_linearity": "gelu"}, "non_linearity gelu"),
        ({"mh_adapter": True}, "mh_adapter True"),
        ({"residual_before_ln": "post_add"}, "residual_before_ln post_add"),
        ({"original_ln_before": None}, "original_ln_before False"),
        ({"is_parallel": True}, "is_parallel True"),
        ({"ln_after": True}, "ln_after True"),
        ({"scaling": "learned"}, "scaling learned"),
        ({"leave_out": [1]}, r"leaves out the layers \[1\]"),
        ({"architecture": "lora"}, "of the architecture lora"),
    ],
)
def test_another_architecture_is_refused_by_name(options, message, folder):
    change(folder / CONFIG, **options)
    with pytest.raises(KinspanError, match=message):
        read_published(folder)


def test_another_tensor_is_refused_by_name(folder):
    tensors = torch.load(folder / TENSORS, weights_only=True)
    for name in (
        "bert.invertible_adapters.beer.F.0.weight",
        "bert.encoder.layer.0.attention.output.adapters.beer.gate",
    ):
        torch.save({**tensors, name: torch.zeros(2)}, folder / TENSORS)
        with pytest.raises(KinspanError, match=name):
            read_published(folder)


def test_damage_and_other_bases_are_named(base, folder, tmp_path):
    with pytest.raises(KinspanError, match="--model is missing"):
        convert_adapter(folder, None, tmp_path / "out")
    config = json.loads((folder / CONFIG).read_text())
    for changed, message in (
        ({"hidden_size": 32}, "has hidden_size 16"),
        ({"model_type": "roberta"}, "model_type bert"),
    ):
        (folder / CONFIG).write_text(json.dumps(config | changed))
        with pytest.raises(KinspanError, match=message):
            convert_adapter(folder, base, tmp_path / "out")
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(KinspanError, match="no adapter of AdapterHub"):
        convert_adapter(folder, base, tmp_path / "out")
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / HEAD).write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(KinspanError, match=f"{HEAD} cannot be read"):
        convert_adapter(folder, base, tmp_path / "out")
    (folder / TENSORS).unlink()
    with pytest.raises(KinspanError, match=f"{TENSORS} cannot be read"):
        convert_adapter(folder, base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class _Touch:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_runs_nothing(how, folder, tmp_path):
    harm = {"bert.encoder.layer.0.output.adapters.beer.adapter_up.bias": _Touch(tmp_path / "ran")}
    if how == "torch":
        torch.save(harm, folder / TENSORS)
    else:
        (folder / TENSORS).write_bytes(pickle.dumps(harm))
    with pytest.raises(KinspanError, match="cannot be read") as caught:
        read_published(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
