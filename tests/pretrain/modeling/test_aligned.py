"""Aligned projections to the vocabulary against torch's own: the same losses and gradients."""

import pytest
import torch

from pretrain.batches import to_tensors
from pretrain.modeling import encoder
from pretrain.modeling.encoder import ALIGNED, AlignedLinear, align_vocabulary
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.losses import compute_mlm_loss
from pretrain.modeling.pair_model import load_model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_learns_the_same(family, make_model, tiny_corpus, make_stream, monkeypatch):
    monkeypatch.setattr(encoder, "replace_linear", lambda model: None)  # which a GPU has not
    monkeypatch.setattr(encoder, "align_vocabulary", lambda *_: None)  # not yet
    model, _ = load_model(str(make_model(family)), seed=1)
    model.eval()  # no dropout
    inputs = to_tensors(make_stream(tiny_corpus, masking=True).batch(0, 6), torch.device("cpu"))

    def compute():
        model.zero_grad()
        _, masked = model.logits(inputs)
        loss, sums = compute_mlm_loss(masked, inputs["masked_labels"])
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return masked.shape[1], loss.detach(), sums, gradients

    size, loss, sums, gradients = compute()
    assert size % ALIGNED, "the tiny model's vocabulary must need aligning"
    align_vocabulary(model, size)
    assert sum(isinstance(module, AlignedLinear) for module in model.modules()) == 1
    aligned_size, aligned_loss, aligned_sums, aligned_gradients = compute()
    assert aligned_size == -(-size // ALIGNED) * ALIGNED
    torch.testing.assert_close(aligned_loss, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(aligned_sums, sums, rtol=1e-5, atol=0)
    assert aligned_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(aligned_gradients[name], gradient, rtol=1e-3, atol=1e-5, msg=name)
