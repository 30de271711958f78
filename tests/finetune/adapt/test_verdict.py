"""The verdict: nothing below the start is chosen, and each sentence has its case."""

from types import SimpleNamespace

import numpy as np
import pytest

from finetune.adapt.verdict import judge
from finetune.adapt.ways import Way
from finetune.evaluation.bm25 import BM25


@pytest.fixture(scope="module")
def splits(write_sets, answer_set):
    folder = write_sets(dev=40, test=80, candidates=6)
    return answer_set(folder, "dev"), answer_set(folder, "test")


def judge_made(splits, **strengths):
    """The verdict on ways that see the labels through noise, each as clearly as told on dev and on test."""
    random = np.random.default_rng(0)

    def see(data, strength):
        return strength * data.labels + random.normal(size=data.num_pairs)

    dev, test = splits
    ways = [Way(name, name, see(dev, on_dev)) for name, (on_dev, _) in strengths.items()]
    of_test = {name: see(test, on_test) for name, (_, on_test) in strengths.items()}
    words = see(test, strengths.get(BM25, (0, 0))[1])
    scorer = SimpleNamespace(score_way=lambda way, data: of_test[way.name], score=lambda model, data: words)
    return judge(ways, next(way for way in ways if way.name == "start"), dev, test, scorer)


def test_a_clear_gain_is_used(splits):
    found = judge_made(splits, start=(1, 1), bi=(3, 3), cross=(0, 0))
    assert found.chosen.name == "bi"
    assert found.sentence.startswith("Use bi: its MAP on the 80 test questions is ")
    assert found.figures["low"] > 0
    assert set(found.tested) == {"start", "bi"}
    assert set(found.test_maps) == {"start", "bi", BM25}  # no other way has been measured on test
    assert found.sentence.endswith(f"; BM25 has {found.test_maps[BM25]:.3f}.")


def test_a_gain_that_may_be_chance_is_called_so(splits):
    found = judge_made(splits, start=(1, 2), bi=(3, 2.15))
    assert found.chosen.name == "bi"
    assert "with care" in found.sentence


def test_the_start_is_kept_where_it_is_the_best_on_dev(splits):
    found = judge_made(splits, BM25=(1, 5), start=(3, 3), cross=(0, 5))
    assert found.chosen.name == "start"
    assert found.sentence.startswith("Keep start: nothing here beats it on the dev questions (best: ")
    assert "by BM25" in found.sentence


def test_what_does_not_hold_on_test_is_not_chosen(splits):
    found = judge_made(splits, start=(2, 3), cross=(4, 1))
    assert (found.chosen.name, found.best.name) == ("start", "cross")
    assert found.sentence.startswith("Keep start: cross was best on dev, but on the 80 test questions it is not better")


@pytest.mark.parametrize("others", [{}, {"bi": (4, 3)}, {"bi": (4, 1)}])
def test_bm25_above_the_ranker_to_use_is_said(splits, others):
    """It is measured on test whether it was best on dev or not."""
    for bm25, is_above in ((6, True), (0, False)):
        found = judge_made(splits, BM25=(0, bm25), start=(2, 2), **others)
        assert (f" That is above {found.chosen.name}: before you decide, " in found.sentence) is is_above


def test_of_equals_the_first_is_chosen(splits):
    dev, test = splits
    ways = [Way(name, name, dev.labels.astype(float)) for name in ("start", "fusion")]
    perfect = lambda _, data: data.labels.astype(float)  # noqa: E731
    scorer = SimpleNamespace(score_way=perfect, score=perfect)
    assert judge(ways, ways[0], dev, test, scorer).chosen.name == "start"
