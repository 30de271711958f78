import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_score, recall_score
from torch.utils.flop_counter import FlopCounterMode

from data_pipeline.sampling.pairs import EASY, HARD, KINDS, POSITIVE
from pretrain.batches import to_tensors
from pretrain.metrics import MIN_LOSSES, FlopCounter, compute_figures, count_seen, is_spike
from pretrain.modeling.cpu import products
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.modeling.encoder import ROUND_TO, encode_packed
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.losses import MLM_SUMS, RTD_SUMS, LossWeights, add_up_pairs, compute_rtd_loss, name_sums
from pretrain.modeling.pair_model import load_model


def sums_of(kinds, called, objective="ssp"):
    out = dict.fromkeys(name_sums(MLM_SUMS, (objective,)), 0.0)
    for number, kind in enumerate(KINDS):
        out[f"{objective}/{kind}_pairs"] = float((kinds == number).sum())
        out[f"{objective}/{kind}_called_positive"] = float(called[kinds == number].sum())
    return out


def test_accuracy_and_f1_are_scikit_learns():
    rng = np.random.default_rng(0)
    kinds, called = rng.choice([POSITIVE, HARD, EASY], 400, p=[0.2, 0.4, 0.4]), rng.random(400) < 0.4
    values = compute_figures(sums_of(kinds, called), LossWeights())
    labels = kinds == POSITIVE
    assert values["pair_accuracy"] == pytest.approx(accuracy_score(labels, called))
    assert values["pair_f1"] == pytest.approx(f1_score(labels, called))
    for name, kind in (("hard", HARD), ("easy", EASY)):
        rows = (kinds == POSITIVE) | (kinds == kind)
        assert values[f"pair_f1_{name}"] == pytest.approx(f1_score(labels[rows], called[rows]))
        expected = accuracy_score(labels[kinds == kind], called[kinds == kind])
        assert values[f"pair_accuracy_{name}"] == pytest.approx(expected)


def test_a_mixtures_figures_are_those_of_all_its_pairs_and_of_each_part():
    rng = np.random.default_rng(0)
    kinds, called = rng.integers(0, 3, 400), rng.random(400) < 0.4
    part = rng.integers(0, 2, 400)
    whole = compute_figures(sums_of(kinds, called), LossWeights())
    halves = [sums_of(kinds[part == k], called[part == k], name) for k, name in enumerate(("sp", "psd"))]
    values = compute_figures({**halves[0], **halves[1]}, LossWeights())
    assert {k: v for k, v in values.items() if "/" not in k} == whole
    for k, name in enumerate(("sp", "psd")):
        alone = compute_figures(halves[k], LossWeights())
        assert {n: v for n, v in values.items() if n.startswith(name)} == {
            f"{name}/{n}": v for n, v in alone.items() if n.startswith("pair_")
        }
    assert values["share_hard"] == pytest.approx((kinds == HARD).mean())


def test_pair_sums_are_counted_by_objective_and_kind():
    rng = np.random.default_rng(0)
    logits, losses = torch.randn(300), torch.rand(300)
    kinds, part = (torch.from_numpy(rng.integers(0, 3, 300).astype(np.int8)) for _ in range(2))
    names = name_sums((), ("a", "b", "c"))
    sums = dict(zip(names, add_up_pairs(logits, losses, kinds, part, 3).tolist(), strict=True))
    for number, name in enumerate("abc"):
        own = part == number
        assert sums[f"{name}/pair_loss"] == pytest.approx(losses[own].sum().item())
        for k, kind in enumerate(KINDS):
            assert sums[f"{name}/{kind}_pairs"] == (own & (kinds == k)).sum()
            assert sums[f"{name}/{kind}_called_positive"] == (own & (kinds == k) & (logits > 0)).sum()


def test_figures_of_token_detection_are_scikit_learns():
    logits, replaced = torch.randn(500), torch.rand(500) < 0.1
    sums = dict.fromkeys(name_sums(MLM_SUMS + RTD_SUMS, ("ssp",)), 0.0)
    loss, own = compute_rtd_loss(logits, replaced)
    sums |= dict(zip(RTD_SUMS, own.tolist(), strict=True))
    values = compute_figures(sums, LossWeights())
    assert values["rtd_loss"] == loss.item() / 500 == pytest.approx(log_loss(replaced, logits.sigmoid()), rel=1e-5)
    assert values["loss"] == pytest.approx(50 * values["rtd_loss"])
    assert values["rtd_accuracy"] == pytest.approx(accuracy_score(replaced, logits > 0))
    assert values["rtd_recall"] == pytest.approx(recall_score(replaced, logits > 0))
    assert values["rtd_precision"] == pytest.approx(precision_score(replaced, logits > 0))
    assert values["replaced_share"] == pytest.approx(replaced.float().mean().item())


def test_flops_of_a_generator_and_a_discriminator(make_model, tiny_corpus, make_stream):
    model, _ = load_replaced_token_model(str(make_model("electra", embedding_size=24)), "1/2", "tied", seed=1)
    batch = make_stream(tiny_corpus, masking=True).batch(0, 8)
    squares = (np.diff(batch.starts).astype(float) ** 2).sum()
    sides = [(24 * h + 2 * (4 * h * h + 2 * h * i), 12 * 2 * h) for h, i in ((32, 64), (16, 32))]
    token_parameters = sum(encoder for encoder, _ in sides) + 32 * 32 + 32
    masked_parameters = 16 * 24 + 24 * model.config.vocab_size
    expected = 6 * (token_parameters * batch.num_tokens + masked_parameters * len(batch.masked_labels))
    assert FlopCounter(model)(batch) == pytest.approx(expected + sum(a for _, a in sides) * squares)


@pytest.mark.parametrize("window", [None, 1, 4, 9])
def test_seen_pairs_are_those_within_the_window(window):
    lengths = np.array([1, 3, 4, 5, 12])
    places = [np.arange(n) for n in lengths]
    within = [abs(p[:, None] - p) < (window or 99) for p in places]
    assert count_seen(lengths, window).tolist() == [int(seen.sum()) for seen in within]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "deberta-v2"])
def test_matrices_are_counted_as_often_as_tokens_pass_them(family, make_model, tiny_corpus, make_stream, monkeypatch):
    """By torch's own counter of matrix products, which does not know those that are oneDNN's. (DeBERTa also projects
    its table of relative positions.)"""
    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    model, _ = load_model(str(make_model(family)), seed=1)
    batch = make_stream(tiny_corpus).batch(0, 1)
    with FlopCounterMode(display=False) as counter:
        encode_packed(model.classifier.base_model, to_tensors(batch, torch.device("cpu")))
    global_batch = counter.get_flop_counts()["Global"]
    linear = sum(count for name, count in global_batch.items() if name in (torch.ops.aten.addmm, torch.ops.aten.mm))
    pooler = 2 * 32 * 32 if family in ("bert", "albert") else 0
    rows = batch.num_tokens + -batch.num_tokens % ROUND_TO
    assert 2 * rows * FlopCounter(model).token_parameters + pooler == linear


def falling(count, noise=0.02):
    generator = np.random.default_rng(1)
    return [3 + 7 * 0.95**k + noise * generator.standard_normal() for k in range(count)]


def test_a_falling_noisy_loss_has_no_spike():
    losses = falling(200)
    assert not any(is_spike(losses[k], losses[max(0, k - 20) : k]) for k in range(200))
    assert not is_spike(1e9, falling(MIN_LOSSES - 1))


@pytest.mark.parametrize(("at", "times"), [(MIN_LOSSES, 1.7), (30, 1.5), (150, 1.2)])
def test_a_leap_is_one(at, times):
    """While the loss still falls fast, only a higher one."""
    losses = falling(200)
    assert is_spike(times * losses[at - 1], losses[max(0, at - 20) : at])
