"""What a fusion weighs on a target: the figures, the cells and the picture."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from data_pipeline.tokenizers import load_tokenizer
from finetune.data.registry import load_split
from finetune.evaluation.metrics import MAP
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer
from finetune.transfer import fusion as module
from finetune.transfer.fusion import name_adapters, weigh_adapters, weigh_sources
from finetune.transfer.matrix import Target
from finetune.transfer.page import plot_fusion
from pretrain.modeling.adapters.bottleneck import list_norms
from pretrain.modeling.adapters.combine import write_tensors
from pretrain.modeling.adapters.folder import Adapter, Base, name_head, name_parts, place_of_base
from pretrain.modeling.adapters.load import load_adapted
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.modeling.default_model import default_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """The folder of a fusion of two adapters, its numbers drawn; and that of one of the two."""
    base, made = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("adapters")
    tokenizer = load_tokenizer(default_model())
    tokenizer.save_pretrained(str(base))
    torch.manual_seed(1)
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), num_labels=1, initializer_range=0.2, **SMALL)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(base)

    def make(name, method, beneath, seed):
        model, _ = load_adapter_model(str(base), method, 4 if method == "pfeiffer" else None, beneath, name, seed)
        torch.manual_seed(seed)
        for parameter in (*model.name_trained().values(), *name_head(model.classifier).values()):
            torch.nn.init.normal_(parameter, std=0.2)
        folder = made / name
        folder.mkdir()
        own = Base("small", place_of_base(str(base), folder), "bert", model.base)
        found = name_parts(model.classifier.base_model, model.parts), name_head(model.classifier)
        values = ({key: p.detach().clone() for key, p in named.items()} for named in found)
        write_tensors(Adapter(folder, model.parts, own, *values), folder, own)
        return str(folder)

    one, two = make("beer", "pfeiffer", [], 2), make("travel", "pfeiffer", [], 3)
    return make("both", "fusion", [one, two], 4), one


@pytest.fixture
def data(sets):
    return load_split(f"files={sets}", "test")[0]


def test_weights_are_the_mean_over_tokens_of_each_pair_alone(fused, data):
    found = weigh_adapters(fused[0], data, 32)
    assert found.shape == (3, 2)
    assert found.sum(1) == pytest.approx(np.ones(3))
    classifier = load_adapted(fused[0]).eval()
    seen = [[] for _ in range(3)]
    for layer, norm in zip(seen, list_norms(classifier.base_model), strict=True):
        norm.parts[0].register_forward_hook(lambda part, x, _, layer=layer: layer.append(part.weigh(x[0])[0]))
    pairs = encode_pairs(data, load_own_tokenizer(fused[0]), 32)
    with torch.no_grad():
        for row in range(data.num_pairs):
            inputs = pairs.pack(np.array([row]), torch.device("cpu"))
            classifier(**{name: inputs[name][None].long() for name in ("input_ids", "token_type_ids")})
    expected = torch.stack([torch.cat(layer).double().mean(0) for layer in seen]).numpy()
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.ptp(found) > 0.01


def test_fusions_alone_are_measured_and_once(fused, data, tmp_path, monkeypatch):
    assert (name_adapters(fused[0]), name_adapters(fused[1]), name_adapters("a/hub-name")) == (
        ["beer", "travel"],
        [],
        [],
    )
    sources, targets = {"both": fused[0], "beer": fused[1]}, [Target("easy", data, MAP)]
    said = []
    first = weigh_sources(sources, targets, tmp_path, 32, said.append)
    assert list(first) == ["both"]
    assert len(said) == 1
    monkeypatch.setattr(module, "weigh_adapters", lambda *arguments: pytest.fail("measured again"))
    again = weigh_sources(sources, targets, tmp_path, 32, said.append)
    assert np.array_equal(again["both"].weights["easy"], first["both"].weights["easy"])
    picture = plot_fusion(first["both"])
    assert "beer" in picture
    assert "travel" in picture
    assert "easy" in picture
