"""The masked-LM loss against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from pretrain.modeling import losses
from pretrain.modeling.losses import compute_mlm_loss

VOCABULARY = 40


def draw(rows, dtype):
    generator = torch.Generator().manual_seed(rows)
    logits = 3 * torch.randn(rows, VOCABULARY, generator=generator)
    labels = torch.randint(VOCABULARY, (rows,), generator=generator)
    logits[: rows // 2].scatter_(1, labels[: rows // 2, None], 9.0)  # so that some are predicted
    return logits.to(dtype).requires_grad_(), labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "chunk"), [(0, 100), (1, 1), (13, 3 * VOCABULARY), (13, 10**6)])
def test_the_masked_loss_is_torchs_cross_entropy(dtype, rows, chunk, monkeypatch):
    monkeypatch.setitem(losses.CHUNKS, "cpu", chunk)
    logits, labels = draw(rows, dtype)
    loss, sums = compute_mlm_loss(logits * 1, labels)
    expected = F.cross_entropy(logits.float(), labels, reduction="sum")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    right = (logits.argmax(-1) == labels).sum().item()
    assert sums.tolist() == pytest.approx([expected.item(), right, rows], rel=1e-6)
    (ours,) = torch.autograd.grad(loss * 7, logits)
    (theirs,) = torch.autograd.grad(expected * 7, logits)
    assert ours.dtype == dtype
    assert torch.allclose(ours.float(), theirs.float(), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


def test_the_gradient_takes_the_place_of_the_logits():
    leaf, labels = draw(13, torch.float32)
    logits = leaf * 1
    place = logits.data_ptr()
    seen = []
    logits.register_hook(lambda grad: seen.append(grad.data_ptr()))
    compute_mlm_loss(logits, labels)[0].backward()
    assert seen == [place]
