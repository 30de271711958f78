"""The losses against their definitions, written out pair by pair."""

import math

import numpy as np
import pytest
import torch

from finetune.training import update as losses


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def naive_pointwise(logits, labels, group_of, positive_weight=1.0):
    weight = {1: positive_weight, 0: 1.0}
    return -sum(weight[y] * math.log(sigmoid(x if y else -x)) for x, y in zip(logits, labels, strict=True))


def by_group(logits, labels, group_of):
    for group in sorted(set(group_of)):
        own = [(x, y) for x, y, g in zip(logits, labels, group_of, strict=True) if g == group]
        yield next(x for x, y in own if y), [x for x, y in own if not y]


def naive_pairwise(*arguments):
    return sum(np.mean([-math.log(sigmoid(p - n)) for n in negatives]) for p, negatives in by_group(*arguments))


def naive_listwise(*arguments):
    return sum(
        -math.log(math.exp(p) / (math.exp(p) + sum(map(math.exp, negatives)))) for p, negatives in by_group(*arguments)
    )


NAIVE = {"pointwise": naive_pointwise, "pairwise": naive_pairwise, "listwise": naive_listwise}


@pytest.fixture
def groups():
    """Three groups of an answer and 1 to 4 negatives, the rows of each together, the answer anywhere in them."""
    sizes, rng = [3, 2, 5], np.random.default_rng(0)
    labels = np.concatenate([rng.permutation([1] + [0] * (n - 1)) for n in sizes])
    return torch.tensor(rng.normal(0, 3, sum(sizes))), torch.tensor(labels), torch.tensor(np.repeat([0, 1, 2], sizes))


@pytest.mark.parametrize("name", losses.LOSSES)
def test_as_defined(name, groups):
    expected = NAIVE[name](*(x.tolist() for x in groups))
    assert getattr(losses, name)(*groups).item() == pytest.approx(expected, rel=1e-6)


def test_the_weight_of_answers(groups):
    expected = naive_pointwise(*(x.tolist() for x in groups), positive_weight=2.5)
    assert losses.pointwise(*groups, positive_weight=2.5).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_the_gradient_does_not_depend_on_the_cut(name, groups):
    logits, labels, group_of = groups
    whole = logits.clone().requires_grad_()
    getattr(losses, name)(whole, labels, group_of).backward()
    cut = logits.clone().requires_grad_()
    for rows, first in ((group_of < 2, 0), (group_of == 2, 2)):
        getattr(losses, name)(cut[rows], labels[rows], group_of[rows] - first).backward()
    torch.testing.assert_close(cut.grad, whole.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_great_logits_stay_finite(name):
    logits = torch.tensor([-1e4, 1e4, 1e4, -1e4], requires_grad=True)
    loss = getattr(losses, name)(logits, torch.tensor([1, 0, 1, 0]), torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert loss.item() == pytest.approx(2e4)
