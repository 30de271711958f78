import warnings

import numpy as np
import pytest
from scipy.stats import ttest_rel

from finetune.evaluation.significance import DRAWS, compare, compare_seeds


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_agrees_with_scipy_and_with_itself():
    rng = np.random.default_rng(1)
    a, b = rng.random(200), rng.random(200)
    found = compare(a, b)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.t_test == pytest.approx(ttest_rel(a, b).pvalue)
    assert found.randomisation == pytest.approx(found.t_test, abs=0.02)  # they ask the same of near-normal means
    assert compare(a, b) == found
    assert compare(b, a).t_test == pytest.approx(found.t_test)


def test_a_plain_improvement_is_significant_and_chance_is_mostly_not():
    rng = np.random.default_rng(2)
    base = rng.random(100)
    better = compare(base + 0.1 + rng.normal(0, 0.1, 100), base)
    assert max(better.t_test, better.randomisation) < 0.001
    p = [compare(base + rng.normal(0, 0.1, 100), base) for _ in range(40)]
    assert sum(one.t_test < 0.05 for one in p) <= 6
    assert sum(one.randomisation < 0.05 for one in p) <= 6


def test_all_signs_where_they_are_few():
    """Of 6 questions all better, 2 of 64 sign patterns give as large a mean."""
    assert compare(np.arange(1, 7.0), np.zeros(6)).randomisation == pytest.approx(2 / 64)
    many = np.append(np.arange(1, 7.0), np.zeros(500))
    assert compare(many, np.zeros(506)).randomisation == pytest.approx(2 / 64)  # equal questions say nothing


@pytest.mark.parametrize("questions", [1, 2, 50])
def test_no_difference_is_p_1(questions):
    values = np.linspace(0, 1, questions)
    found = compare(values, values)
    assert (found.difference, found.t_test, found.randomisation) == (0, 1, 1)


def test_one_question_proves_nothing_and_a_constant_difference_does():
    assert (compare(np.ones(1), np.zeros(1)).t_test, compare(np.ones(1), np.zeros(1)).randomisation) == (1, 1)
    always = compare(np.ones(100), np.zeros(100))
    assert always.t_test == 0
    assert 0 < always.randomisation <= 2 / DRAWS


def test_of_several_seeds_the_mean_is_compared():
    rng = np.random.default_rng(3)
    a, b = rng.random((3, 40)), rng.random((5, 40))
    assert compare(a, b) == compare(a.mean(axis=0), b.mean(axis=0))


def test_seeds_against_seeds():
    assert compare_seeds(np.array([0.81, 0.82, 0.83]), np.array([0.71, 0.73, 0.72])) < 0.01
    assert compare_seeds(np.array([0.81, 0.70, 0.83]), np.array([0.80, 0.73, 0.82])) > 0.5
    assert compare_seeds(np.full(3, 0.5), np.full(4, 0.5)) == 1
