"""MPNet and DeBERTa on packed rows, against each sequence by itself in the forward of transformers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pretrain.modeling.cpu.dropout import PairDropout, decide_dropout
from pretrain.modeling.encoder import encode_packed, prepare_encoder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.packing import Packing
from tests.pretrain.conftest import make_config

LENGTHS = [5, 1, 30, 2, 17]
WIDE = {"initializer_range": 0.5, "vocab_size": 50}
DEBERTAS = {
    "as v3": {},
    "projections of their own": {"share_att_key": False},
    "keys by distance alone": {"share_att_key": False, "pos_att_type": ["c2p"]},
    "queries by distance alone": {"share_att_key": False, "pos_att_type": ["p2c"]},
    "neither": {"pos_att_type": []},
    "no relative attention": {"relative_attention": False, "position_biased_input": True, "type_vocab_size": 2},
    "without buckets, of more distances than the table has": {"position_buckets": -1, "max_relative_positions": 12},
    "a wider convolution in groups": {"conv_kernel_size": 5, "conv_groups": 4, "conv_act": "tanh"},
}
MODELS = [("mpnet", {})] + [("deberta-v2", options) for options in DEBERTAS.values()]


def build(family, **options):
    torch.manual_seed(0)
    backbone = AutoModel.from_config(make_config(family, **WIDE | options))
    prepare_encoder(backbone, backbone)
    for p in backbone.parameters():
        if p.dim() == 1:  # biases and norms, which begin at 0 and 1
            torch.nn.init.normal_(p, std=0.5)
    return backbone.double()


def draw_inputs():
    torch.manual_seed(1)
    positions = torch.cat([torch.arange(n) for n in LENGTHS]).int()
    ids = torch.randint(3, 50, positions.shape, dtype=torch.int32)
    starts = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    types = (torch.rand(positions.shape) > 0.5).int()
    inputs = {"input_ids": ids, "token_type_ids": types, "position_ids": positions}
    return inputs | {"starts": starts, "max_length": max(LENGTHS)}


def encode_alone(backbone, inputs):
    rows = []
    for start, end in zip(inputs["starts"][:-1], inputs["starts"][1:], strict=True):
        tokens = {"input_ids": inputs["input_ids"][None, start:end].long()}
        if FAMILIES[backbone.config.model_type].token_types:
            tokens["token_type_ids"] = inputs["token_type_ids"][None, start:end].long()
        rows.append(backbone(**tokens).last_hidden_state[0])
    return torch.cat(rows)


def compute_gradients(backbone, hidden):
    torch.manual_seed(2)
    backbone.zero_grad()
    (hidden * torch.randn_like(hidden)).sum().backward()
    return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("where", ["processor", "gpu"])
@pytest.mark.parametrize(("family", "options"), MODELS, ids=["mpnet", *DEBERTAS])
def test_hidden_states_and_gradients_are_those_of_each_sequence_alone(family, options, where, monkeypatch):
    if where == "gpu":  # where nobody knows the bounds
        make = Packing.of
        monkeypatch.setattr(Packing, "of", lambda *args: replace(make(*args), bounds=None))
    backbone, inputs = build(family, **options).eval(), draw_inputs()
    packed, expected = encode_packed(backbone, inputs), encode_alone(backbone, inputs)
    assert torch.allclose(packed, expected, atol=1e-5)
    ours, theirs = compute_gradients(backbone, packed), compute_gradients(backbone, expected)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, atol=1e-5 * (1 + gradient.abs().max())), name


def encode_with_dropout(backbone, inputs, pairs, step=1):
    with decide_dropout(1, step, 0, np.array(pairs)):
        return encode_packed(backbone.train(), inputs)


@pytest.mark.parametrize("family", ["mpnet", "deberta-v2"])
def test_dropout_of_a_sequence_does_not_depend_on_the_others(family):
    """Nor that of DeBERTa's table on how many of its rows the longest sequence needs."""
    backbone, inputs = build(family, attention_probs_dropout_prob=0.3, hidden_dropout_prob=0.2), draw_inputs()
    first, last = inputs["starts"][-2:].tolist()
    alone = {name: x[first:last] for name, x in inputs.items() if name.endswith("_ids")}
    alone |= {"starts": torch.tensor([0, last - first], dtype=torch.int32), "max_length": last - first}
    among = encode_with_dropout(backbone, inputs, [4, 7, 1, 9, 3])[first:last]
    assert torch.allclose(encode_with_dropout(backbone, alone, [3]), among, atol=1e-10)
    for changed in (encode_with_dropout(backbone, alone, [2]), encode_with_dropout(backbone, alone, [3], step=2)):
        assert (changed - among).abs().mean() > 0.1


@pytest.mark.parametrize("family", ["mpnet", "deberta-v2"])
def test_every_dropout_of_the_library_is_applied(family):
    backbone, inputs = build(family), draw_inputs()
    layers = {name: module for name, module in backbone.named_modules() if isinstance(module, PairDropout)}
    assert len(layers) >= 7
    for layer in layers.values():
        layer.p = 0.0
    whole = encode_with_dropout(backbone, inputs, range(5))
    for name, layer in layers.items():
        layer.p = 0.3
        assert (encode_with_dropout(backbone, inputs, range(5)) - whole).abs().max() > 1e-4, name
        layer.p = 0.0
