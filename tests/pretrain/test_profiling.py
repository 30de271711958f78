import gzip
import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pretrain import profiling
from pretrain.config import PretrainConfig
from pretrain.engine.deepspeed_compat import time_collectives
from pretrain.engine.engine import start_distributed
from pretrain.profiling import PARTS, TRACE, TRACED, WARM_UP, Profile
from pretrain.run import pretrain

STEPS = 4


@pytest.fixture
def pass_time(monkeypatch):
    """``pass_time(seconds)`` moves on the clock that the profile reads."""
    now = [0.0]
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def take_steps(profile, number, pass_time):
    lines = []
    for _ in range(number):
        lines += profile.begin_step()
        for part, seconds in (("data wait", 1), ("forward", 2), ("backward", 3), ("forward", 2), ("optimizer", 4)):
            profile.enter(part)
            pass_time(seconds)
        profile.count([1e12, 3e12])
        profile.enter("logging")
        pass_time(8)
    return lines


def test_the_time_between_marks_belongs_to_the_part_that_began(tmp_path, pass_time):
    start_distributed()
    profile = Profile(STEPS, tmp_path, 1.0, traces=False)
    lines = take_steps(profile, WARM_UP + STEPS + TRACED, pass_time)
    assert not lines
    lines = profile.begin_step()
    spent = {"data wait": 1, "forward": 4, "backward": 3, "optimizer": 4, "logging": 8}
    assert profile.seconds == {part: STEPS * spent.get(part, 0) for part in PARTS}
    assert profile.flops == STEPS * 4e12
    table = dict(re.findall(r"^  (\w[\w ]*?) +([\d.]+) ms", "\n".join(lines), re.MULTILINE))
    assert {name: float(ms) for name, ms in table.items()} == {
        **{part: 1e3 * seconds for part, seconds in spent.items()},
        "all": 20e3,
        "floor": 4e3,
    }
    assert not profile.finish()
    assert not take_steps(profile, 3, pass_time)


def test_a_run_that_ends_early_says_so(tmp_path, pass_time):
    start_distributed()
    profile = Profile(STEPS, tmp_path, 1.0, traces=False)
    take_steps(profile, WARM_UP + 2, pass_time)
    profile.begin_step()
    assert profile.finish()[-1] == f"profile: the run ended after 2 of {STEPS} steps to time"


def test_collectives_are_taken_out_of_the_part_that_calls_them(tmp_path, pass_time, monkeypatch):
    from deepspeed import comm

    start_distributed()
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *a, **k: pass_time(5))
    profile = Profile(1, tmp_path, 1.0, traces=False)
    take_steps(profile, WARM_UP, pass_time)
    profile.begin_step()
    profile.enter("optimizer")
    pass_time(1)
    comm.all_reduce(torch.ones(1))
    pass_time(1)
    profile.begin_step()
    assert profile.seconds["communication"] == 5
    assert profile.seconds["optimizer"] == 2
    comm.all_reduce(torch.ones(1))  # no longer watched
    assert profile.seconds["communication"] == 5


def test_collectives_that_return_at_once_are_waited_for(monkeypatch):
    from deepspeed import comm

    class Handle:
        waited = False

        def wait(self):
            self.waited = True

    start_distributed()
    handle, seen = Handle(), []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *a, **k: handle)
    restore = time_collectives(lambda: "forward", lambda part: seen.append((part, handle.waited)))
    assert comm.all_reduce(torch.ones(1), async_op=True) is handle
    restore()
    comm.all_reduce(torch.ones(1), async_op=True)
    assert seen == [("forward", True)]


def test_a_profiled_run_ends_with_the_same_weights(make_model, tiny_corpus, tmp_path, capfd):
    def train(name, **more):
        folder = tmp_path / name
        config = PretrainConfig(
            corpus=str(tiny_corpus),
            model=str(model),
            output_dir=str(folder),
            max_steps=WARM_UP + STEPS + TRACED + 1,
            save_steps=5,
            eval_pairs=0,
            log_steps=4,
            global_batch_size=8,
            micro_batch_size=4,
            max_length=48,
            precision="fp32",
            **more,
        )
        pretrain(config)
        return load_file(str(folder / f"checkpoints/step-{config.max_steps:08d}/weights.safetensors"))

    model = make_model()
    plain = train("plain")
    assert "where a step" not in capfd.readouterr().out
    assert not (tmp_path / "plain" / TRACE).exists()
    profiled = train("profiled", profile=STEPS)
    assert plain.keys() == profiled.keys()
    assert all(np.array_equal(plain[name], profiled[name]) for name in plain)
    table = dict(re.findall(r"^  (\w[\w ]*?) +[\d.]+ ms +([\d.]+)%$", capfd.readouterr().out, re.MULTILINE))
    assert {"forward", "backward", "optimizer", "checkpoint", "logging", "data wait", "all", "floor"} <= table.keys()
    assert sum(float(share) for part, share in table.items() if part in PARTS) == pytest.approx(100, abs=0.5)
    events = json.loads(gzip.decompress((tmp_path / "profiled" / TRACE).read_bytes()))["traceEvents"]
    named = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert named.count("forward") == named.count("backward") == 2 * TRACED  # two micro-batches
    products = ("aten::addmm", "mkldnn::_linear_pointwise")
    assert any(event["name"] in products for event in events)
    lines = [json.loads(line) for line in (tmp_path / "profiled/metrics.jsonl").read_text().splitlines()]
    assert all(line["mfu_percent"] > 0 and line["token_imbalance"] == 1 for line in lines)
