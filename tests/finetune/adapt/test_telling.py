import math

from finetune.adapt import duration
from finetune.adapt.budget import parse_budget
from finetune.adapt.duration import Forecast
from finetune.adapt.telling import log_steps


def test_a_long_step_is_not_silent(tmp_path):
    told = []
    with log_steps(tmp_path / "log.txt", Forecast(parse_budget("12800pairs"), None), told.append) as teller:
        teller.begin_stage("pre-training")
        print("the head starts fresh")
        teller.break_silence()
        assert told == ["pre-training"]
        teller.told = -math.inf
        teller.break_silence()
        print("step 10/400  train  loss 0.9")
        teller.told = -math.inf
        teller.break_silence()
        print("step 400/400  train  loss 0.9")
    assert told[1] == "  still at it"
    assert told[2] == "  10 of 400 updates"
    assert (tmp_path / "log.txt").read_text().splitlines()[1] == "step 10/400  train  loss 0.9"


def test_how_long_the_rest_takes_is_told_anew_with_the_updates(tmp_path, monkeypatch):
    told, clock = [], iter([0.0, 20.0, 30.0])
    monkeypatch.setattr(duration, "monotonic", lambda: next(clock))
    with log_steps(tmp_path / "log.txt", Forecast(parse_budget("3200pairs"), None), told.append) as teller:
        teller.advice = "try this first"
        teller.begin_stage("pre-training")
        print("step 0/100  validation loss 1.2")
        print("step 10/100  train      loss 1.1")
        print("step 20/100  train      loss 1.0")
        teller.told = -math.inf
        teller.break_silence()
        teller.begin_stage("measuring")
    assert told == [
        "pre-training",
        "  at the present speed about 4 min are left (pre-training 3 min, ranking 76 s)",
        "  20 of 100 updates; about 3 min left in all",
        "measuring\n  this takes about 57 s, and all that is left 57 s",
    ]


def test_a_long_adaptation_says_what_answers_sooner(tmp_path, monkeypatch):
    told, clock = [], iter([0.0, 200.0, 400.0])
    monkeypatch.setattr(duration, "monotonic", lambda: next(clock))
    with log_steps(tmp_path / "log.txt", Forecast(parse_budget("3200pairs"), None), told.append) as teller:
        teller.advice = "try this first"
        teller.begin_stage("pre-training")
        for step in (0, 10, 20):
            print(f"step {step}/100  train  loss 1.2")
    assert told[2:] == ["try this first"]
