import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from finetune.evaluation.significance import (
    DRAWS,
    compare,
    compare_rows,
    compare_runs,
    compute_interval,
    correct_holm,
    estimate_error,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_agrees_with_scipy_and_with_itself():
    rng = np.random.default_rng(1)
    a, b = rng.random(200), rng.random(200)
    found = compare(a, b)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.p == pytest.approx(ttest_rel(a, b).pvalue, abs=0.02)  # as of near-normal means
    assert compare(a, b) == found
    assert compare(b, a).p == pytest.approx(found.p, abs=0.02)


def test_a_plain_improvement_is_significant_and_chance_is_mostly_not():
    rng = np.random.default_rng(2)
    base = rng.random(100)
    assert compare(base + 0.1 + rng.normal(0, 0.1, 100), base).p < 0.001
    p = [compare(base + rng.normal(0, 0.1, 100), base) for _ in range(40)]
    assert sum(one.p < 0.05 for one in p) <= 6


def test_all_signs_where_they_are_few():
    """Of 6 questions all better, 2 of 64 sign patterns give as large a mean."""
    assert compare(np.arange(1, 7.0), np.zeros(6)).p == pytest.approx(2 / 64)
    many = np.append(np.arange(1, 7.0), np.zeros(500))
    assert compare(many, np.zeros(506)).p == pytest.approx(2 / 64)  # equal questions say nothing


def test_one_question_proves_nothing_and_a_constant_difference_does():
    assert compare(np.ones(1), np.zeros(1)).p == 1
    assert 0 < compare(np.ones(100), np.zeros(100)).p <= 2 / DRAWS


def test_of_several_seeds_the_mean_is_compared():
    rng = np.random.default_rng(3)
    a, b = rng.random((3, 40)), rng.random((5, 40))
    assert compare(a, b) == compare(a.mean(axis=0), b.mean(axis=0))


def test_holms_correction():
    """By hand: .01 x 3, .02 x 2, .04 x 1; and no p becomes smaller than one that was smaller before."""
    assert correct_holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert correct_holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert correct_holm([0.9, 0.6]) == [1, 1]
    assert correct_holm([0.2]) == [0.2]
    assert correct_holm([]) == []


def test_rows_are_corrected_for_their_number_and_a_single_run_is_compared_over_questions():
    """So are equal runs: a transferred ranker that no seed trains on is the same for all seeds."""
    rng = np.random.default_rng(4)
    first = rng.random((3, 40))
    rows = [first, first + rng.normal(0.05, 0.1, (3, 40)), rng.random((1, 40)), np.tile(rng.random(40), (3, 1))]
    nothing, *tests = compare_rows(rows)
    assert nothing is None
    p = [compare_runs(row, first).p for row in (rows[1], rows[2], rows[3][:1])]
    assert [test["p"] for test in tests] == p
    assert [test["corrected"] for test in tests] == correct_holm(p)
    assert compare_rows(rows[2:])[1]["p"] == compare(rows[3], rows[2]).p
    assert compare_rows([np.eye(2), np.eye(2)])[1]["p"] == 1


def test_chances_of_questions_and_of_seeds_together_hold_the_level():
    """Both as large, and no difference: the greater p of two tests, each of one chance, would find one more often."""
    rng, found, greater = np.random.default_rng(6), 0, 0
    for _ in range(400):
        noise = rng.normal(0, 0.3, 60) / 2
        a, b = (sign * noise + rng.normal(0, 0.05, (5, 1)) + rng.normal(0, 0.1, (5, 60)) for sign in (1, -1))
        found += compare_runs(a, b).p < 0.05
        greater += max(compare(a, b, draws=200).p, ttest_ind(*(x.mean(axis=1) for x in (a, b))).pvalue) < 0.05
    assert found <= 28 < greater  # of 400: 20 and two standard deviations


def test_errors_and_intervals_are_those_of_theory():
    rng = np.random.default_rng(7)
    assert estimate_error(np.array([[0.0, 0], [2, 2]]), np.ones((1, 2))) == (1, 1)  # of two seeds alone
    error, _ = estimate_error(*rng.normal(size=(2, 5, 400)))  # of what seeds change in single questions alone
    assert error == pytest.approx(np.sqrt(2 / 2000), rel=0.1)
    values = rng.normal(size=400)
    assert compute_interval(values) == pytest.approx(values.mean() + np.array([-0.098, 0.098]), abs=0.008)
