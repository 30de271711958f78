"""How long an adaptation will take: by the speed of the last updates, whichever training makes them."""

import pytest

from finetune.adapt import duration
from finetune.adapt.budget import parse_budget
from finetune.adapt.duration import RECENT, Forecast
from finetune.adapt.questions import load_questions


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(duration, "monotonic", lambda: now[0])
    return now


@pytest.fixture(scope="module")
def questions(write_sets, tmp_path_factory):
    return load_questions(str(write_sets(train=20, dev=12, test=12)), None, tmp_path_factory.mktemp("questions"))


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
    stages = forecast.list_stages()
    for number, stage in enumerate(stages[:-1]):
        forecast.begin_stage()
        advance(forecast, clock, (0, stage.updates), stage.updates, 1.0)
        left = forecast._list_left()
        assert len(left) == len(stages) - number
        assert left[0] == pytest.approx((stage.validation + stage.after) * forecast.pace)
    assert forecast.list_kinds().startswith("fine-tuning ")
    assert "pre-training" not in forecast.list_kinds()
    forecast.begin_stage()
    assert forecast.list_kinds() == f"ranking {forecast.tell_all()}"
    assert forecast.tell_stage() == forecast.tell_all()


def test_the_slow_start_of_a_stage_hardly_counts(clock, questions):
    """Its updates are then as fast as foreseen."""
    forecast = Forecast(parse_budget("3200pairs"), questions)
    forecast.begin_stage()
    advance(forecast, clock, range(0, 101, 10), 100, 20.0)
    forecast.begin_stage()
    before = sum(forecast._list_left())
    stage = forecast.list_stages()[1]
    forecast.count(0, stage.updates, True)
    clock[0] += 10 * 2 * stage.update * forecast.pace
    forecast.count(2, stage.updates)
    assert before < sum(forecast._list_left()) < 3 * before


def test_validations_are_work_too(clock, questions):
    """A line before and one after a validation: the pace stays, whenever it is asked."""
    forecast = Forecast(parse_budget("3200pairs"), questions)
    forecast.begin_stage()
    forecast.begin_stage()
    stage, paces = forecast.list_stages()[1], []
    for step, is_validated in ((0, True), (10, False), (20, False), (20, True), (30, False)):
        clock[0] = stage.count_done(step, is_validated)
        forecast.count(step, stage.updates, is_validated)
        paces.append(forecast.pace)
    assert paces[1:] == pytest.approx([1.0] * 4)


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
