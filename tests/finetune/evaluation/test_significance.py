import warnings

import numpy as np
import pytest
from scipy.stats import ttest_rel

from finetune.evaluation.significance import (
    DRAWS,
    compare,
    compare_rows,
    compare_seeds,
    correct_holm,
    is_established,
    take_greater_p,
)


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


def test_holms_correction():
    """By hand: .01 x 3, .02 x 2, .04 x 1; and no p becomes smaller than one that was smaller before."""
    assert correct_holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert correct_holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert correct_holm([0.9, 0.6]) == [1, 1]
    assert correct_holm([0.2]) == [0.2]
    assert correct_holm([]) == []


def test_rows_are_corrected_for_their_number_and_single_runs_have_no_p_over_seeds():
    rng = np.random.default_rng(4)
    first = rng.random((3, 40))
    rows = [first, first + rng.normal(0.05, 0.1, (3, 40)), rng.random((1, 40)), rng.random((3, 40))]
    nothing, *tests = compare_rows(rows)
    assert nothing is None
    assert ["over_seeds" in test for test in tests] == [True, False, True]
    for name, count in (("t_test", 3), ("over_seeds", 2)):
        p = [test[name] for test in tests if name in test]
        assert [test["corrected"][name] for test in tests if name in test] == correct_holm(p)
        assert len(p) == count
    assert tests[0]["over_seeds"] == compare_seeds(rows[1].mean(axis=1), first.mean(axis=1))


def test_equal_runs_of_a_row_have_no_p_over_seeds():
    """A transferred ranker that no seed trains on is the same for all seeds: no variance, and Welch's p would be 0."""
    first = np.random.default_rng(5).random((3, 40))
    copies = np.repeat(first[:1] + 0.2, 3, axis=0)
    for rows in ([first, copies], [copies, first], [copies, copies - 0.2]):
        _, test = compare_rows(rows)
        assert "over_seeds" not in test
        assert not is_established(test)


def test_a_difference_is_established_over_questions_and_over_seeds():
    assert is_established({"corrected": {"t_test": 0.01, "over_seeds": 0.02}, "over_seeds": 0.02})
    assert not is_established({"corrected": {"t_test": 0.01, "over_seeds": 0.06}, "over_seeds": 0.02})
    assert not is_established({"corrected": {"t_test": 0.0001}})  # of one seed


def test_the_greater_p_counts():
    assert take_greater_p({"corrected": {"t_test": 0.01, "over_seeds": 0.2}}) == 0.2
    assert take_greater_p({"corrected": {"t_test": 0.2, "over_seeds": 0.01}}) == 0.2
    assert take_greater_p({"corrected": {"t_test": 0.01}}) == 0.01  # of one seed
