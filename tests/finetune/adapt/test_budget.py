"""Budgets: what they may be, and how many updates they come to."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt.budget import FEWEST_UPDATES, PLANNED, parse_budget, train_for


@pytest.fixture
def train():
    """A run that takes two seconds an update, and keeps how long it was asked to be."""
    asked = []

    def run(updates):
        asked.append(updates)
        return {"steps": updates, "wall_seconds": 2.0 * updates}

    run.asked = asked
    return run


@pytest.mark.parametrize(
    ("text", "seconds", "pairs"), [("30m", 1800, None), ("1.5h", 5400, None), ("51,200pairs", None, 51200)]
)
def test_times_and_pairs(text, seconds, pairs):
    budget = parse_budget(text)
    assert (budget.seconds, budget.pairs) == (seconds, pairs)


@pytest.mark.parametrize("text", ["", "30", "m", "0m", "-3m", "3 days", "1.2.3h", "1,5h", "nan m", "3199pairs"])
def test_anything_else_is_refused(text):
    with pytest.raises(KinspanError, match="--budget"):
        parse_budget(text)


def test_a_time_is_measured_once_and_then_stays(train, tmp_path):
    train_for(parse_budget("20m"), train, tmp_path)
    assert train.asked == [FEWEST_UPDATES, 600]
    train_for(parse_budget("20m"), train, tmp_path)
    assert train.asked[2:] == [600]
    train_for(parse_budget("40m"), train, tmp_path)
    assert train.asked[3:] == [1200]


def test_a_run_that_was_killed_is_asked_for_the_same_length(train, tmp_path):
    def die(updates):
        if updates > FEWEST_UPDATES:
            raise KeyboardInterrupt
        return train(updates)

    with pytest.raises(KeyboardInterrupt):
        train_for(parse_budget("20m"), die, tmp_path)
    assert json.loads((tmp_path / PLANNED).read_text())["updates"] == {"20m": 600}
    train_for(parse_budget("20m"), train, tmp_path)
    assert train.asked == [FEWEST_UPDATES, 600]


def test_pairs_need_no_measurement(train, tmp_path):
    train_for(parse_budget("51200pairs"), train, tmp_path)
    train_for(parse_budget("3200pairs"), train, tmp_path)
    assert train.asked == [1600, FEWEST_UPDATES]
