"""The statistics of the evidence study: they hold their error rate, they see what is there, and intervals cover it."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from benchmarks.evidence.statistics import (
    Contrast,
    compute_p_over_seeds,
    correct,
    draw_differences,
    find_detectable,
    measure_contrast,
    measure_error_rate,
    split_in_halves,
)

QUESTIONS = 240


def make_row(random, seeds=5, gain=0.0, of_seeds=0.01, questions=None):
    """``[S, Q]``: a row whose seeds differ by ``of_seeds``, and whose questions are those of the other rows."""
    hard = random.uniform(0.2, 1.0, QUESTIONS) if questions is None else questions
    moved = hard + gain + random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, 0.1, (seeds, QUESTIONS))
    return moved


@pytest.mark.parametrize(("residual", "least", "most"), [(0.02, 88, 99), (0.3, 93, 100)])
def test_an_interval_covers_the_true_difference_as_often_as_it_says(residual, least, most):
    """Over 100 studies whose questions and seeds are drawn anew: in about 95 of them, and in more where most of what
    seeds change is of single questions, which the bootstrap counts more than once."""
    random, covered = np.random.default_rng(0), 0
    for study in range(100):
        rows = []
        for gain in (0.03, 0.0):
            of_questions, of_seeds = random.normal(gain, 0.1, (1, 60)), random.normal(0, 0.01, (5, 1))
            rows.append(of_questions + of_seeds + random.normal(0, residual, (5, 60)))
        low, high = np.quantile(draw_differences(rows, (1, -1), study), [0.025, 0.975])
        covered += low <= 0.03 <= high
    assert least <= covered <= most


def test_the_part_of_the_seeds_is_stretched_for_their_number():
    """The variance of the bootstrap is that of the two means: s^2 / S of each, however few the seeds."""
    random = np.random.default_rng(1)
    rows = [np.repeat(random.normal(0.6, 0.02, (seeds, 1)), QUESTIONS, axis=1) for seeds in (3, 5)]
    expected = sum(row[:, 0].var(ddof=1) / len(row) for row in rows)
    assert draw_differences(rows, (1, -1)).var() == pytest.approx(expected, rel=0.05)


def test_a_single_seed_shows_nothing():
    random = np.random.default_rng(2)
    contrast = measure_contrast([make_row(random, seeds=1, gain=0.3), make_row(random, seeds=1)])
    assert contrast.over_seeds is None
    (corrected,) = correct([contrast])
    assert corrected.corrected == 1.0
    assert not corrected.is_shown


def test_a_large_difference_is_shown_and_none_is_not():
    random = np.random.default_rng(3)
    questions = random.uniform(0.2, 1.0, QUESTIONS)
    one, other, better = (make_row(random, gain=gain, questions=questions) for gain in (0.0, 0.0, 0.1))
    same, found = correct([measure_contrast([one, other]), measure_contrast([better, one])])
    assert not same.is_shown
    assert found.is_shown
    assert found.low < found.difference < found.high
    assert found.low > 0


def test_holm_counts_comparisons_that_have_not_run():
    contrast = Contrast(0.1, 0.05, 0.15, 0.02, over_questions=0.01, over_seeds=0.02)
    alone, among = correct([contrast])[0], correct([contrast, *[None] * 3])[0]
    assert alone.corrected == pytest.approx(0.02)
    assert among.corrected == pytest.approx(0.08)


def test_over_seeds_two_rows_are_welchs_test_and_four_of_them_are_satterthwaites():
    random = np.random.default_rng(4)
    one, other = random.normal(0.6, 0.02, 5), random.normal(0.65, 0.01, 3)
    assert compute_p_over_seeds([one, other], (1, -1)) == pytest.approx(ttest_ind(one, other, equal_var=False).pvalue)
    zero = [np.array([0.5, 0.5, 0.5])] * 2  # rows that do not vary leave the test of the two others
    four = compute_p_over_seeds([one, other, *zero], (1, -1, -1, 1))
    assert four == pytest.approx(ttest_ind(one, other, equal_var=False).pvalue)


def test_ten_seeds_split_in_126_ways_each_seed_once():
    row = np.arange(10.0)[:, None] * np.ones((1, QUESTIONS))
    splits = [frozenset(one[:, 0]) for one, _ in split_in_halves(row)]
    assert len(splits) == len(set(splits)) == 126
    assert all(len(one) == len(other) == 5 for one, other in split_in_halves(row))
    assert all(not set(one[:, 0]) & set(other[:, 0]) for one, other in split_in_halves(row))


def test_the_error_rate_of_equal_seeds_is_small():
    """The splits of ten runs are no independent trials, so the bound is loose."""
    rate = measure_error_rate(make_row(np.random.default_rng(5), seeds=10, of_seeds=0.0)[:, :50])
    assert rate["splits"] == 126
    assert rate["both"] <= min(rate["over_questions"], rate["over_seeds"]) <= 0.15


def test_what_could_be_seen_is_seen_in_four_of_five_cases():
    """Differences of the size that is called detectable, with a known standard error."""
    error = 0.01
    found = np.abs(np.random.default_rng(6).normal(find_detectable(error), error, 20_000)) > 1.96 * error
    assert found.mean() == pytest.approx(0.8, abs=0.01)
    assert find_detectable(error, comparisons=40) > find_detectable(error)
