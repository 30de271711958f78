"""The verdict: what is chosen where a gain is shown, where none is, where it costs too much; and what chance shows."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from finetune.adapt.rankers import Ranker, name_base
from finetune.adapt.verdict import LEVEL, NOT_LEARNED, judge, judge_without_labels
from finetune.evaluation.bm25 import BM25
from finetune.evaluation.significance import correct_choice

QUESTIONS = 60


@dataclass(frozen=True)
class MeasuredRanker(Ranker):
    """A ranker whose average precisions are given."""

    precision: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def measure(self, data):
        return self.precision


@pytest.fixture
def make_rankers():
    """``make_rankers(base=.5, bi=.7)``: BM25 and rankers of these MAP, whose questions differ."""
    noise = np.random.default_rng(0)
    base = noise.uniform(0.2, 0.6, QUESTIONS)

    def make(spread=0.1, **maps):
        rankers = []
        for name, value in {BM25: 0.3, **maps}.items():
            gains = noise.normal(scale=spread, size=QUESTIONS)
            precision = base - base.mean() + value + gains - gains.mean()
            rankers.append(MeasuredRanker(name, "bi-encoder", name, np.zeros(0), precision=precision))
        return rankers

    return make


def decide(rankers, ms=None, level=LEVEL, **options):
    times = {ranker.name: 1.0 for ranker in rankers} | (ms or {})
    return judge(rankers, rankers[1], None, times, level, **options)


def test_a_shown_gain_is_used_and_chance_is_not(make_rankers):
    verdict = decide(make_rankers(base=0.5, bi=0.7, cross=0.6))
    assert (verdict.chosen.name, verdict.best.name) == ("bi", "bi")
    assert verdict.figures["difference"] == pytest.approx(0.2)
    assert verdict.sentence.startswith("Use bi")
    assert "p <.001" in verdict.sentence
    verdict = decide(make_rankers(base=0.5, bi=0.502, cross=0.49))
    assert (verdict.chosen.name, verdict.best.name) == ("base", "bi")
    assert verdict.sentence.startswith("Keep base")
    assert verdict.p["bi"] > LEVEL


def test_the_missing_questions_are_about_those_that_would_show_the_gain(make_rankers):
    """They show it in four cases of five, at the next look and with the choice among the rankers."""
    rankers = make_rankers(spread=0.2, base=0.5, bi=0.51, **dict.fromkeys("abcdef", 0.5))
    figures = decide(rankers).figures
    missing = int(figures["more"].split()[1].replace(",", ""))
    gains = np.stack([ranker.measure(None) - rankers[1].measure(None) for ranker in rankers[2:]])
    gains[0] += 0.05 - gains[0].mean()
    shown = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).integers(QUESTIONS, size=QUESTIONS + missing)
        shown += correct_choice(gains[:, drawn], 1000)[0] <= LEVEL / 2
    assert 70 <= shown <= 90


def test_a_small_gain_is_not_worth_ten_times_the_time(make_rankers):
    rankers = make_rankers(spread=0.001, base=0.5, bi=0.6, cross=0.605)
    slow = {"cross": 20.0}
    assert decide(rankers, slow).chosen.name == "bi"
    said = decide(rankers, slow, measure_test=lambda ranker: ranker.precision - 0.3).sentence
    assert all(number in said for number in ("0.300", "0.600", "0.605"))  # on the test questions, and out of fold
    assert decide(rankers, slow, quality_first=True).chosen.name == "cross"
    assert decide(rankers, {"cross": 9.0}).chosen.name == "cross"
    only = make_rankers(spread=0.001, base=0.5, cross=0.505)
    assert decide(only, slow).chosen.name == "base"
    assert decide(only, slow, quality_first=True).chosen.name == "cross"


def test_a_test_set_has_the_last_word_and_only_the_best_is_measured_on_it(make_rankers):
    rankers = make_rankers(base=0.5, bi=0.7, cross=0.6)
    for of_test, chosen in (({"bi": 0.62}, "bi"), ({"bi": 0.45}, "base")):
        tested = {ranker.name: ranker for ranker in make_rankers(base=0.5, **of_test)}
        measured = []

        def measure(ranker, tested=tested, measured=measured):
            measured.append(ranker.name)
            return tested[ranker.name].precision

        verdict = decide(rankers, measure_test=measure)
        assert (verdict.chosen.name, verdict.best.name) == (chosen, "bi")
        assert set(measured) == {"bi", "base", BM25}
        assert verdict.figures["chosen"] == pytest.approx(of_test["bi"])


def test_a_set_that_was_looked_at_before_needs_more(make_rankers):
    rankers = make_rankers(base=0.5, bi=0.53)
    p = decide(rankers).p["bi"]
    assert decide(rankers, level=p).chosen.name == "bi"
    assert decide(rankers, level=p / 2).chosen.name == "base"


@pytest.mark.parametrize("questions", [20, 50, 200])
def test_without_any_difference_one_verdict_in_twenty_changes_the_ranker(questions):
    """Seven rankers and the base are equally good, and agree on which questions are hard."""
    random = np.random.default_rng(questions)
    changed = 0
    for _ in range(1000):
        hard, common = random.beta(0.8, 0.6, questions), random.normal(size=questions)
        noise = 0.2 * (0.6 * common + 0.8 * random.normal(size=(8, questions)))
        precision = np.clip(hard + noise * (random.random((8, questions)) < 0.6), 0, 1)
        changed += correct_choice(precision[1:] - precision[0], 1000).min() <= LEVEL
    assert 15 <= changed <= 60


def test_a_model_with_a_pair_head_is_measured_by_it(make_model, tmp_path):
    model = make_model()
    result = judge_without_labels(str(model), str(model), tmp_path)
    assert result["rows"][0]["name"] == name_base(str(model))
    assert result["rows"][0]["map"] == result["rows"][1]["map"]
    assert result["sentence"] == NOT_LEARNED
