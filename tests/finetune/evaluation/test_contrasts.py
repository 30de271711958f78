"""The statistics of contrasts: they hold their error rate, they see what is there, and intervals cover it."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import t, ttest_ind

from data_pipeline.core.errors import KinspanError
from finetune.evaluation import contrasts
from finetune.evaluation.contrasts import (
    Contrast,
    Parts,
    compute_p_over_seeds,
    correct,
    draw_differences,
    find_detectable,
    find_interval,
    measure_contrast,
    measure_parts,
)
from finetune.evaluation.significance import compare, compare_seeds

QUESTIONS = 240


def make_row(random, seeds=5, gain=0.0, of_seeds=0.01, questions=None):
    """``[S, Q]``: a row whose seeds differ by ``of_seeds``, and whose questions are those of the other rows."""
    hard = random.uniform(0.2, 1.0, QUESTIONS) if questions is None else questions
    moved = hard + gain + random.normal(0, of_seeds, (seeds, 1)) + random.normal(0, 0.1, (seeds, QUESTIONS))
    return moved


@pytest.mark.parametrize(
    ("of_seeds", "residual", "seeds", "least", "most"),
    [(0.01, 0.02, 5, 89, 99), (0.01, 0.3, 5, 89, 99), (0.05, 0.02, 3, 89, 99)],
)
def test_an_interval_covers_the_true_difference_as_often_as_it_says(
    monkeypatch, of_seeds, residual, seeds, least, most
):
    """Over 100 studies whose questions and seeds are drawn anew: in about 95 of them, also with few seeds that differ
    much, and where most of what seeds change is of single questions, which the bootstrap counts more than once."""
    monkeypatch.setattr(contrasts, "DRAWS", 2000)
    random, covered = np.random.default_rng(0), 0
    for study in range(100):
        rows = []
        for gain in (0.03, 0.0):
            moved = random.normal(gain, 0.1, (1, 60)) + random.normal(0, of_seeds, (seeds, 1))
            rows.append(moved + random.normal(0, residual, (seeds, 60)))
        by_question = rows[0].mean(axis=0) - rows[1].mean(axis=0)
        draws, parts = draw_differences(rows, (1, -1), study), measure_parts(rows, by_question)
        low, high = find_interval(draws, by_question.mean(), parts)
        covered += low <= 0.03 <= high
    assert least <= covered <= most


def test_an_interval_is_as_wide_as_students_t_with_its_degrees_of_freedom():
    """However wide the bootstrap is by itself."""
    few = Parts(1e-6, 200, (1e-3, 1e-3), (3, 3))
    for spread in (0.01, 1.0):
        low, high = find_interval(np.random.default_rng(0).normal(0.2, spread, 100_000), 0.2, few)
        assert (high - low) / 2 == pytest.approx(t.isf(0.025, few.freedom) * few.error, rel=0.02)
        assert (high + low) / 2 == pytest.approx(0.2, abs=0.02 * (high - low))


def test_the_residual_counts_once():
    """Where it is all there is, questions and seeds each hold the whole of it: together they are twice too much."""
    random, seeds, questions = np.random.default_rng(7), 20, 60
    squares = []
    for _ in range(200):
        rows = [random.normal(0, 0.3, (seeds, questions)) for _ in range(2)]
        squares.append(measure_parts(rows, rows[0].mean(axis=0) - rows[1].mean(axis=0)).error ** 2)
    assert np.mean(squares) == pytest.approx(2 * 0.3**2 / (seeds * questions), rel=0.3)


def test_degrees_of_freedom_are_few_where_few_seeds_are_most_of_the_variance():
    """Of two rows without any variance over questions they are Welch's."""
    assert Parts(0.0, 200, (1e-4, 1e-4), (3, 3)).freedom == pytest.approx(4)
    assert Parts(1e-4, 200, (0.0, 0.0), (3, 3)).freedom == pytest.approx(199)
    assert 4 < Parts(1e-5, 200, (1e-4, 1e-4), (3, 3)).freedom < 199


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


def test_one_question_is_refused():
    with pytest.raises(KinspanError, match="two test questions or more"):
        measure_contrast([np.ones((3, 1)), np.zeros((3, 1))])


def test_equal_seeds_count_as_one():
    """Rounding alone tells their means apart, by which a test over seeds would have any p, 0 as well."""
    random = np.random.default_rng(9)
    rows = [np.repeat(make_row(random, seeds=1, gain=gain), 3, axis=0) for gain in (0.3, 0.0)]
    assert measure_contrast(rows) == measure_contrast([row[:1] for row in rows])


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
    parts = Parts(1e-4, 200, (1e-4, 1e-4), (5, 5))
    contrast = Contrast(0.1, 0.05, 0.15, parts, over_questions=0.01, over_seeds=0.02)
    alone, among = correct([contrast])[0], correct([contrast, *[None] * 3])[0]
    assert alone.corrected == pytest.approx(0.02)
    assert among.corrected == pytest.approx(0.08)


def test_holm_corrects_the_greater_p_of_each_comparison():
    """Each test corrected by itself would give .04 here, since each has one small p; the two greater p are equal."""
    parts = Parts(1e-4, 200, (1e-4, 1e-4), (5, 5))
    pair = [Contrast(0.1, 0, 0.2, parts, over_questions=q, over_seeds=s) for q, s in ((0.01, 0.04), (0.04, 0.01))]
    assert [c.corrected for c in correct(pair)] == pytest.approx([0.08, 0.08])


def test_over_seeds_two_rows_are_welchs_test_and_four_of_them_are_satterthwaites():
    random = np.random.default_rng(4)
    one, other = random.normal(0.6, 0.02, 5), random.normal(0.65, 0.01, 3)
    assert compute_p_over_seeds([one, other], (1, -1)) == pytest.approx(ttest_ind(one, other, equal_var=False).pvalue)
    zero = [np.array([0.5, 0.5, 0.5])] * 2  # rows that do not vary leave the test of the two others
    four = compute_p_over_seeds([one, other, *zero], (1, -1, -1, 1))
    assert four == pytest.approx(ttest_ind(one, other, equal_var=False).pvalue)


def test_two_halves_of_equal_seeds_seldom_seem_to_differ():
    """Nothing is there to be found. The halves are of the same ten runs, so the bound is loose."""
    row = make_row(np.random.default_rng(5), seeds=10, of_seeds=0.0)[:, :50]
    found = []
    for others in combinations(range(1, 10), 4):
        first = np.isin(np.arange(10), (0, *others))
        one, other = row[first], row[~first]
        found.append([compare(one, other).over_questions, compare_seeds(one.mean(axis=1), other.mean(axis=1))])
    over_questions, over_seeds = (np.array(found) < 0.05).mean(axis=0)
    assert max(over_questions, over_seeds) <= 0.15


@pytest.mark.parametrize("seeds", [(5, 5), (3, 5)])
def test_a_detectable_difference_is_detected_in_four_of_five_studies(seeds):
    """By the very tests, in studies whose true variances are those of the parts."""
    questions, of_seeds, of_questions, studies = 60, 0.01, 0.1, 100
    parts = Parts(of_questions**2 / questions, questions, (of_seeds**2,) * 2, seeds)
    gain, random, found = find_detectable([parts]), np.random.default_rng(6), 0
    for study in range(studies):
        moved = random.normal(gain, of_questions, (1, questions))
        rows = [random.normal(0, of_seeds, (count, 1)) + np.zeros((1, questions)) for count in seeds]
        rows[0] = rows[0] + moved
        over_seeds = compare_seeds(*(row.mean(axis=1) for row in rows))
        found += max(compare(*rows, study).over_questions, over_seeds) < 0.05
    assert found / studies == pytest.approx(0.8, abs=0.1)


def test_of_rows_with_fewer_seeds_the_variance_is_their_own():
    noisy, calm = Parts(1e-5, 200, (1e-4, 1e-6), (3, 5)), Parts(1e-5, 200, (1e-6, 1e-4), (3, 5))
    assert find_detectable([noisy]) > 1.5 * find_detectable([calm])
    turned = Parts(1e-5, 200, (1e-6, 1e-4), (5, 3))  # which row is first is no matter
    assert find_detectable([turned]) == pytest.approx(find_detectable([noisy]), rel=0.03)


def test_less_is_detectable_with_more_seeds_and_at_a_looser_level():
    few, many = (Parts(1e-4, 200, (1e-4, 1e-4), (count, 5)) for count in (3, 5))
    assert find_detectable([many]) < find_detectable([few]) < find_detectable([few], 0.05 / 43)
