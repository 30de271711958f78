from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from pretrain.engine.schedule import OPEN_ENDED_WARMUP, Schedule, make_schedule

SHAPES = ("triangular", "wsd", "cosine", "constant")


@st.composite
def schedules(draw):
    total = draw(st.integers(2, 500))
    schedule = Schedule(draw(st.sampled_from(SHAPES)), 1e-4, 0, total, draw(st.floats(0.01, 0.99)))
    return replace(schedule, warmup=draw(st.integers(0, max(0, schedule.decay_start - 1))))


def rates_of(schedule):
    return [schedule.rate(step) for step in range(schedule.total)]


@given(schedules())
def test_rises_to_the_peak_and_never_again(schedule):
    rates = rates_of(schedule)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(rate > 0 for rate in rates)
    assert max(rates) <= 1e-4 * (1 + 1e-12)
    if schedule.decay_start > schedule.warmup:
        assert max(rates) == pytest.approx(1e-4)
    if schedule.shape != "constant":  # the update after the last would have none
        assert schedule.rate(schedule.total) == pytest.approx(0, abs=1e-18)


@given(schedules(), st.integers(2, 1000))
def test_open_ended_runs_are_alike_up_to_the_earlier_decay(schedule, other):
    other = replace(schedule, total=other)
    if schedule.shape in ("wsd", "constant"):
        common = min(schedule.decay_start, other.decay_start)
        assert rates_of(schedule)[:common] == rates_of(other)[:common]


def test_both_sides_of_a_triangle_are_straight():
    rates = rates_of(Schedule("triangular", 1.0, 4, 12))
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]


def test_wsd_decays_as_one_less_the_root():
    rates = rates_of(Schedule("wsd", 1.0, 2, 16, 0.25))
    assert rates[1:13] == [1.0] * 12
    assert rates[13:] == [1 - 0.25**0.5, 1 - 0.5**0.5, 1 - 0.75**0.5]


def config(shape, share=0.2):
    return SimpleNamespace(lr_schedule=shape, decay_share=share)


def test_a_default_warmup_of_an_open_ended_run_does_not_depend_on_its_length():
    warmups = [make_schedule(config("wsd"), 1e-4, total, None).warmup for total in (100, 10_000)]
    assert warmups == [OPEN_ENDED_WARMUP] * 2
    assert make_schedule(config("triangular"), 1e-4, 10_000, None).warmup == 1000


def test_a_warmup_that_is_too_long_names_the_flag_that_was_given():
    default = "--lr_schedule wsd without --warmup_steps"
    for warmup, flag, named in ((None, None, default), (50, None, "--warmup_steps 50"), (50, "--x", "--x")):
        with pytest.raises(KinspanError, match=f"^{named}: "):
            make_schedule(config("wsd"), 1e-4, 40, warmup, flag=flag)

    with pytest.raises(KinspanError, match="--decay_share"):  # no update between warm-up and decay
        make_schedule(config("wsd", 0.5), 1e-4, 100, None)
