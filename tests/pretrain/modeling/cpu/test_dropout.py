"""Masks of dropout: their shares, their independence, and what they are a function of."""

import numpy as np
import pytest
import torch

from pretrain.modeling.cpu import dropout
from pretrain.modeling.cpu.dropout import Masks, PairDropout, decide_dropout, draw_mask, mix

ROWS, WIDTH = 3000, 384


@pytest.fixture(scope="module")
def dropped():
    """One large mask of the probability .1, as numbers of mean 0 and variance 1."""
    masks = Masks(1, 2, np.arange(ROWS))
    kept = draw_mask(masks.pairs, masks.start_call(WIDTH), WIDTH, 0.1, torch.float64)
    return ((1 - kept) - 0.1) / 0.3


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
def test_the_probability_is_exact(p):
    masks = Masks(1, 2, np.arange(20_000))
    kept = draw_mask(masks.pairs, masks.start_call(1000), 1000, p, torch.float32)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert abs(dropout.round_probability(p) - p) <= 1e-5
    share = 1 - kept.double().mean().item()
    assert abs(share - p) <= 5 * (p * (1 - p) / kept.numel()) ** 0.5 + 1e-5
    assert abs(share - p) <= 6e-4  # 20 million draws


def test_rows_and_columns_are_dropped_alike(dropped):
    for axis, length in ((0, ROWS), (1, WIDTH)):
        means = dropped.mean(axis) * length**0.5  # of a standard deviation of 1, were all draws independent
        assert means.std().item() == pytest.approx(1.0, abs=0.15)
        assert means.abs().max() < 5.5


def test_no_two_rows_or_columns_agree_by_more_than_chance(dropped):
    for numbers in (dropped[:400], dropped.T):
        correlation = numbers @ numbers.T / numbers.shape[1] ** 0.5
        others = correlation[~torch.eye(len(numbers), dtype=torch.bool)]
        assert others.std().item() == pytest.approx(1.0, abs=0.05)
        assert others.abs().max() < 9.0


def test_the_corners_of_rectangles_are_independent(dropped):
    """Each number is a hash of its row's and its column's: an exclusive or of four corners alone would be 0."""
    corners = dropped[:-1, :-1] * dropped[1:, :-1] * dropped[:-1, 1:] * dropped[1:, 1:]
    assert abs(corners.mean().item()) * corners.numel() ** 0.5 < 5


def test_mixing_changes_half_of_the_bits_and_loses_nothing():
    numbers = torch.arange(-50_000, 50_000, dtype=torch.int32)
    mixed = mix(numbers.clone())
    assert len(mixed.unique()) == len(numbers)
    for bit in (0, 7, 15, 31):
        changed = mix(numbers ^ (1 << bit if bit < 31 else -(2**31))) ^ mixed
        share = np.unpackbits(changed.numpy().view(np.uint8)).mean()
        assert share == pytest.approx(0.5, abs=0.01)


def masks_of(seed, step, pair, calls=1, width=64):
    masks = Masks(seed, step, np.array([pair]))
    for _ in range(calls):
        columns = masks.start_call(width)
    return draw_mask(masks.pairs, columns, width, 0.5, torch.float32)


def test_a_mask_is_a_function_of_seed_step_pair_and_call():
    base = masks_of(1, 2, 3)
    assert torch.equal(base, masks_of(1, 2, 3))
    for changed in (masks_of(2, 2, 3), masks_of(1, 3, 3), masks_of(1, 2, 4), masks_of(1, 2, 3, calls=2)):
        assert 10 < (base != changed).sum() < 54


def test_a_pair_is_dropped_alike_wherever_it_lies_in_a_row():
    def rows_of(pairs, lengths, wanted):
        masks = Masks(1, 2, np.array(pairs))
        sequence = torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor(lengths))
        masks.place_tokens(sequence, torch.cat([torch.arange(n) for n in lengths]), 5)
        here = torch.zeros(len(sequence) + 5, dtype=torch.bool)
        here[: len(sequence)] = sequence == pairs.index(wanted)
        return masks.tokens[here], masks.rows_of_heads(4)[:, here]

    alone, among = rows_of([8], [6], 8), rows_of([3, 8, 4], [2, 6, 9], 8)
    assert all(torch.equal(left, right) for left, right in zip(alone, among, strict=True))
    assert len(alone[1].unique()) == 24  # each head and token has its own


def test_the_gradient_passes_where_the_mask_is_one():
    layer = PairDropout(0.25).train()
    x = torch.randn(7, 33, dtype=torch.float64, requires_grad=True)
    with decide_dropout(1, 2, 3, np.arange(7)):
        out = layer(x)
    out.backward(torch.full_like(x, 2.0))
    scale = 1 / 0.75
    kept = out != 0
    assert 0 < kept.sum() < kept.numel()
    assert torch.allclose(out, x * scale * kept)
    assert torch.allclose(x.grad, 2 * scale * kept.double())
