"""What is redrawn of each family, and what two labels become."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_head import fold_two_labels, redraw_head
from tests.pretrain.conftest import OWN, SMALL


def build_trained(family, **options):
    """A small classifier all of whose parameters differ from what any initialisation draws."""
    config = AutoConfig.for_model(family, **{"vocab_size": 99, "num_labels": 1} | SMALL | OWN[family] | options)
    if family == "modernbert":
        config.vocab_size = 103  # it has its own special tokens
    classifier = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.normal_(0.5, 0.1)
            parameter._is_hf_initialized = True  # as from_pretrained leaves what it has loaded
    return classifier


@pytest.mark.parametrize("family", FAMILIES)
def test_all_above_the_encoder_is_redrawn_and_the_encoder_kept(family):
    """The encoder is what the hidden states depend on, which their gradient tells for every family alike."""
    classifier = build_trained(family)
    classifier.base_model(input_ids=torch.arange(6, 14)[None]).last_hidden_state.pow(2).sum().backward()
    encoder = {name for name, parameter in classifier.named_parameters() if parameter.grad is not None}
    before = {name: parameter.detach().clone() for name, parameter in classifier.named_parameters()}
    redraw_head(classifier, seed=3)
    redrawn = {name for name, parameter in classifier.named_parameters() if not torch.equal(parameter, before[name])}
    assert len(redrawn) >= 2
    assert redrawn == before.keys() - encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_two_labels_become_their_difference(family):
    classifier = build_trained(family, num_labels=2)
    states = torch.randn(5, SMALL["hidden_size"])
    inputs = {"input_ids": torch.arange(6, 14).expand(3, 8).clone()}
    inputs["input_ids"][:, 1] = torch.tensor([20, 40, 60])
    with torch.no_grad():
        two = classifier(**inputs).logits
        fold_two_labels(classifier)
        one = classifier(**inputs).logits
        assert FAMILIES[family].pair_logits(classifier, states).shape == (5,)
    assert one.shape == (3, 1)
    torch.testing.assert_close(one[:, 0], two[:, 1] - two[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one[:, 0].sigmoid(), two.softmax(dim=1)[:, 1], atol=1e-5, rtol=1e-5)
    assert classifier.config.num_labels == 1
