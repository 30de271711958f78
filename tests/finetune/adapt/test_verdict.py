"""The verdict: nothing below the base model is chosen, and each sentence has its case."""

import numpy as np
import pytest

from finetune.adapt.rankers import Ranker, name_base
from finetune.adapt.verdict import (
    NOT_LEARNED,
    judge,
    judge_without_labels,
)
from finetune.evaluation.bm25 import BM25


@pytest.fixture(scope="module")
def splits(write_sets, answer_set):
    folder = write_sets(dev=40, test=80, candidates=6)
    return answer_set(folder, "dev"), answer_set(folder, "test")


class MadeScores:
    """A cache of scores that see the labels through noise."""

    def __init__(self, strengths):
        self.random, self.strengths = np.random.default_rng(0), strengths

    def see(self, data, strength):
        return strength * data.labels + self.random.normal(size=data.num_pairs)

    def score_ranker(self, ranker, data):
        return self.see(data, self.strengths[ranker.name][1])

    def rank(self, name, model, data):
        return Ranker(name, model, self.see(data, self.strengths.get(BM25, (0, 0))[1]))


@pytest.mark.parametrize(
    ("strengths", "chosen", "best", "sentence"),
    [
        ({"base": (1, 1), "bi": (3, 3), "cross": (0, 0)}, "bi", "bi", "Use bi: "),
        ({"base": (1, 2), "bi": (3, 2.15)}, "bi", "bi", "Use bi, with care: "),
        ({BM25: (1, 5), "base": (3, 3), "cross": (0, 5)}, "base", "base", "Keep base: nothing here beats it"),
        ({"base": (2, 3), "cross": (4, 1)}, "base", "cross", "Keep base: cross was best on dev"),
    ],
)
def test_each_verdict_has_its_case(splits, strengths, chosen, best, sentence):
    dev, test = splits
    scores = MadeScores(strengths)
    rankers = [Ranker(name, name, scores.see(dev, on_dev)) for name, (on_dev, _) in strengths.items()]
    base = next(ranker for ranker in rankers if ranker.name == "base")
    verdict = judge(rankers, base, dev, test, scores)
    assert (verdict.chosen.name, verdict.best.name) == (chosen, best)
    assert verdict.sentence.startswith(sentence)
    assert set(verdict.test_maps) == {"base", best, BM25}  # no other ranker has been measured on test
    assert (" That is above " in verdict.sentence) == (verdict.figures["bm25"] > verdict.test_maps[chosen])


def test_of_equals_the_first_is_chosen(splits):
    dev, test = splits
    rankers = [Ranker(name, name, dev.labels.astype(float)) for name in ("base", "fusion")]
    scores = MadeScores({"base": (0, 99), "fusion": (0, 99)})
    assert judge(rankers, rankers[0], dev, test, scores).chosen.name == "base"


def test_a_model_with_a_pair_head_is_measured_by_it(make_model, tmp_path):
    model = make_model()
    result = judge_without_labels(str(model), str(model), tmp_path)
    assert result["rows"][0]["name"] == name_base(str(model))
    assert len(result["rows"]) == 4
    assert result["rows"][0]["map"] == result["rows"][1]["map"]
    assert result["sentence"] == NOT_LEARNED
