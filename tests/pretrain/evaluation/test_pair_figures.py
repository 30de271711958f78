import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from pretrain.evaluation.pair_figures import _compute_auc, _rank_pairs, compute_pair_figures

NAMES = {"all": (HARD, EASY), "hard": (HARD,), "easy": (EASY,)}


def some(seed, n=60, g=5, ties=False):
    """Scores and kinds ``[n, g]``: positives somewhat higher, a quarter of the anchors with no hard negative."""
    rng = np.random.default_rng(seed)
    kinds = np.tile(np.array([POSITIVE, HARD, HARD, EASY, EASY], dtype=np.int8)[:g], (n, 1))
    kinds[rng.random(n) < 0.25, 1:] = EASY
    scores = rng.normal(size=(n, g)) + (kinds == POSITIVE) + rng.normal(size=(n, 1)) - 0.5
    return (np.round(scores, 0) if ties else scores), kinds


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_figures_equal_scikit_learns(seed, ties):
    scores, kinds = some(seed, ties=ties)
    figures = compute_pair_figures(scores, kinds, resamples=20)
    for group, negatives in NAMES.items():
        rows = np.isin(kinds, (POSITIVE, *negatives))
        truth, called = kinds[rows] == POSITIVE, scores[rows] > 0
        assert figures[group]["accuracy"][0] == pytest.approx(accuracy_score(truth, called))
        assert figures[group]["f1"][0] == pytest.approx(f1_score(truth, called))
        assert figures[group]["auc"][0] == pytest.approx(roc_auc_score(truth, scores[rows]))
        even = np.where(truth, 1 / truth.sum(), 1 / (~truth).sum())
        assert figures[group]["accuracy_even"][0] == pytest.approx(accuracy_score(truth, called, sample_weight=even))
        assert figures[group]["f1_even"][0] == pytest.approx(f1_score(truth, called, sample_weight=even))
    assert figures["kinds"]["hard"][0] == pytest.approx((scores[kinds == HARD] <= 0).mean())
    assert figures["kinds"]["positive"][0] == pytest.approx((scores[kinds == POSITIVE] > 0).mean())


def test_each_resample_is_scikit_learns_with_weights():
    scores, kinds = some(5, n=40, ties=True)
    weights = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=9)
    anchor = np.repeat(np.arange(40), 5)
    ours = _compute_auc(_rank_pairs(scores, kinds, (HARD, EASY)), weights)
    theirs = [roc_auc_score(kinds.ravel() == POSITIVE, scores.ravel(), sample_weight=w[anchor]) for w in weights]
    assert ours == pytest.approx(theirs)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Anchors with an offset of their own, which makes their pairs alike: 300 samples, 40 million pairs the truth."""
    rng = np.random.default_rng(3)
    kinds = np.tile(np.array([POSITIVE, HARD, HARD, EASY, EASY], dtype=np.int8), (100, 1))
    shift = np.array([0.8, 0.0, 0.0, -0.7, -0.7])

    def draw(n):
        return shift + rng.normal(size=(n, 5)) + rng.normal(size=(n, 1))

    many = draw(200_000)
    negatives = np.sort(many[:, 1:].ravel())
    truth = {
        "accuracy": np.where(kinds[0] == POSITIVE, many > 0, many <= 0).mean(),
        "auc": np.searchsorted(negatives, many[:, 0]).mean() / len(negatives),
    }
    covered = dict.fromkeys(truth, 0)
    for k in range(300):
        figures = compute_pair_figures(draw(100), kinds, seed=k, resamples=300)["all"]
        for name, value in truth.items():
            _, low, high = figures[name]
            covered[name] += low <= value <= high
    assert all(0.90 <= c / 300 <= 0.98 for c in covered.values()), covered


def test_kinds_that_are_absent_are_left_out():
    scores, kinds = some(1, g=2)
    kinds[:, 1] = EASY
    figures = compute_pair_figures(scores, kinds, resamples=10)
    assert set(figures) == {"all", "easy", "kinds"}
    assert set(figures["kinds"]) == {"positive", "easy"}


def test_a_seed_gives_the_same_intervals():
    scores, kinds = some(2)
    assert compute_pair_figures(scores, kinds, seed=4) == compute_pair_figures(scores, kinds, seed=4)
    assert compute_pair_figures(scores, kinds, seed=4) != compute_pair_figures(scores, kinds, seed=5)


def test_resamples_are_held_a_few_at_a_time(monkeypatch):
    """2,000 resamples of 4,000 pairs are 64 MB a table of 8 bytes; figures do not depend on how many are held."""
    scores, kinds = some(6)
    whole = compute_pair_figures(scores, kinds, resamples=50)
    monkeypatch.setattr("pretrain.evaluation.pair_figures.MOST_NUMBERS", 3 * scores.size)
    assert compute_pair_figures(scores, kinds, resamples=50) == whole
    scores, kinds = some(7, n=800)
    monkeypatch.setattr("pretrain.evaluation.pair_figures.MOST_NUMBERS", 100_000)
    tracemalloc.start()
    compute_pair_figures(scores, kinds, resamples=2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
