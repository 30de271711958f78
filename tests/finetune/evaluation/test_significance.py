import warnings

import numpy as np
import pytest
from scipy.stats import ttest_rel

from finetune.evaluation.significance import (
    DRAWS,
    compare,
    compare_rows,
    compare_seeds,
    correct_greater,
    correct_holm,
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
    assert found.over_questions == pytest.approx(ttest_rel(a, b).pvalue, abs=0.02)  # as of near-normal means
    assert compare(a, b) == found
    assert compare(b, a).over_questions == pytest.approx(found.over_questions, abs=0.02)


def test_a_plain_improvement_is_significant_and_chance_is_mostly_not():
    rng = np.random.default_rng(2)
    base = rng.random(100)
    better = compare(base + 0.1 + rng.normal(0, 0.1, 100), base)
    assert better.over_questions < 0.001
    p = [compare(base + rng.normal(0, 0.1, 100), base) for _ in range(40)]
    assert sum(one.over_questions < 0.05 for one in p) <= 6


def test_all_signs_where_they_are_few():
    """Of 6 questions all better, 2 of 64 sign patterns give as large a mean."""
    assert compare(np.arange(1, 7.0), np.zeros(6)).over_questions == pytest.approx(2 / 64)
    many = np.append(np.arange(1, 7.0), np.zeros(500))
    assert compare(many, np.zeros(506)).over_questions == pytest.approx(2 / 64)  # equal questions say nothing


def test_one_question_proves_nothing_and_a_constant_difference_does():
    assert compare(np.ones(1), np.zeros(1)).over_questions == 1
    always = compare(np.ones(100), np.zeros(100))
    assert 0 < always.over_questions <= 2 / DRAWS


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
    greater = [max(test["over_questions"], test.get("over_seeds", 0)) for test in tests]
    assert [test["corrected"] for test in tests] == correct_holm(greater)
    assert tests[0]["over_seeds"] == compare_seeds(rows[1].mean(axis=1), first.mean(axis=1))


def test_equal_runs_of_a_row_have_no_p_over_seeds():
    """A transferred ranker that no seed trains on is the same for all seeds: no variance, and Welch's p would be 0."""
    first = np.random.default_rng(5).random((3, 40))
    copies = np.repeat(first[:1] + 0.2, 3, axis=0)
    for rows in ([first, copies], [copies, first], [copies, copies - 0.2]):
        _, test = compare_rows(rows)
        assert "over_seeds" not in test


def test_the_greater_p_is_corrected_and_not_each_kind_apart():
    """Two comparisons that one test each takes for chance: corrected apart, .03 x 2 and .01 would be .06 and .06; the
    greater p are .5 and .4, and nothing is near the level. Where all agree, nothing but Holm's factor is left."""
    assert correct_greater([[0.01, 0.5], [0.4, 0.01]]) == pytest.approx([0.8, 0.8])
    assert correct_greater([[0.01, 0.04], [0.03, 0.02]]) == pytest.approx([0.06, 0.06])
    assert correct_greater([[0.01], [0.02, 0.01]]) == pytest.approx([0.02, 0.02])


def test_the_family_wise_error_holds_the_level():
    """1,000 studies of eight comparisons: four differ over questions alone, four over seeds alone, none in both."""
    rng = np.random.default_rng(6)
    chance, small = rng.random((1000, 8)), np.full((1000, 8), 1e-6)
    kinds = np.arange(8) < 4
    over_questions, over_seeds = np.where(kinds, small, chance), np.where(kinds, chance, small)
    found = apart = 0
    for questions, seeds in zip(over_questions, over_seeds, strict=True):
        found += min(correct_greater(np.stack([questions, seeds], axis=1))) < 0.05
        apart += min(np.maximum(correct_holm(questions), correct_holm(seeds))) < 0.05
    assert found <= 65  # 50 and two standard deviations
    assert apart > 80  # what the tables did before
