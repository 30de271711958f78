"""Preflight: hosts that differ are named, and one process trains for two steps and leaves nothing."""

import shutil
from types import SimpleNamespace

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.preflight import HostFacts, compare, preflight
from tests.pretrain.steps import make_run, set_up_alone

SHARED = {"numpy": "2.4.6", "--seed": "1", "device": "NVIDIA H100"}


def test_the_host_that_differs_is_named_once():
    facts = [HostFacts(f"node{rank // 2}", SHARED, []) for rank in range(6)]
    assert compare(facts) == []
    facts[2:4] = [HostFacts("node1", SHARED | {"numpy": "1", "nccl": "2"}, ["shared memory is full"])] * 2
    assert [line.partition(":")[0] for line in compare(facts)] == ["node1"] * 3


@pytest.fixture
def make_config(make_model, tiny_corpus, tmp_path):
    return lambda **settings: make_run(tiny_corpus, make_model(), tmp_path / "runs/run", **settings)


def test_a_run_with_nothing_in_the_way_is_ready_and_nothing_is_left(make_config, tmp_path, caplog):
    caplog.set_level("INFO")
    assert preflight(make_config(max_steps=3600, keep_checkpoints=10**9)) == []
    assert "3600 steps take" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoints_that_a_run_keeps_must_fit(make_config, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2e9))
    assert preflight(make_config(max_steps=3600, save_steps=1)) == []
    for kept in ({"keep_every": 1}, {"keep_checkpoints": 3600}):
        with pytest.raises(KinspanError, match="--output_dir"):
            preflight(make_config(max_steps=3600, save_steps=1, **kept))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        *[({"warmup_steps": 10, "max_steps": 10}, "--warmup_steps"), ({"max_steps": 4, "seed": 7}, "--output_dir")],
        ({"max_steps": 4, "resume_with": ["max_steps=2"]}, "--resume_with"),
    ],
)
def test_what_the_run_would_refuse_is_refused_and_the_folder_stays(settings, flag, make_config, tmp_path):
    set_up_alone(make_config(max_steps=4))
    output = tmp_path / "runs/run"
    (output / "checkpoints/step-00000003").mkdir(parents=True)
    before = sorted(output.rglob("*"))
    with pytest.raises(KinspanError, match=flag):
        preflight(make_config(**settings))
    assert sorted(output.rglob("*")) == before
