"""How long an adaptation will take: by the speed of the last updates, whichever training makes them."""

import pytest

from finetune.adapt import duration
from finetune.adapt.budget import parse_budget
from finetune.adapt.duration import LABELLED, RECENT, Forecast
from finetune.adapt.questions import settle_questions


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(duration, "monotonic", lambda: now[0])
    return now


@pytest.fixture(scope="module")
def questions(write_sets, tmp_path_factory):
    return settle_questions(str(write_sets(train=20, dev=12, test=12)), None, tmp_path_factory.mktemp("questions"))


def advance(forecast, clock, steps, total, seconds):
    """Makes ``steps`` of ``total`` updates, each of which takes so many seconds."""
    for step in steps:
        forecast.count(step, total)
        clock[0] += seconds
    return sum(forecast._list_left())


def test_it_follows_a_machine_that_gets_faster(clock, questions):
    forecast = Forecast(parse_budget("12800pairs"), questions)
    forecast.begin_stage()
    assert not forecast.tell_all()
    slow = advance(forecast, clock, range(10), 400, 60.0)
    fast = advance(forecast, clock, range(10, 10 + RECENT + 1), 400, 0.5)
    assert fast < slow / 100


def test_each_stage_has_its_part_and_what_is_done_is_not_counted_again(clock, questions):
    forecast = Forecast(parse_budget("3200pairs"), questions)
    left = []
    for stage in range(len(LABELLED) - 1):
        forecast.begin_stage()
        left.append(advance(forecast, clock, (0, 50), 100, 1.0))
        assert len(forecast._list_left()) == len(LABELLED) - stage
    assert forecast.list_kinds().startswith("fine-tuning ")
    assert "pre-training" not in forecast.list_kinds()
    forecast.begin_stage()
    assert forecast.list_kinds() == f"ranking {forecast.tell_all()}"
    assert forecast.tell_stage() == forecast.tell_all()


def test_a_budget_of_time_takes_that_time_whatever_the_speed(clock):
    for seconds in (0.5, 1.0):
        forecast = Forecast(parse_budget("20m"), None)
        forecast.begin_stage()
        advance(forecast, clock, (0, 1, 2), 100, seconds)
        assert forecast.updates == 1200 / seconds
        assert forecast._list_left()[0] == pytest.approx(1200, rel=0.01)


def test_a_training_that_goes_on_from_an_earlier_update_is_measured_anew(clock):
    forecast = Forecast(parse_budget("12800pairs"), None)
    forecast.begin_stage()
    advance(forecast, clock, (80, 90, 100), 100, 1.0)
    advance(forecast, clock, (80,), 400, 1.0)
    assert forecast._list_left()[0] == pytest.approx(320 / 10, rel=0.01)
