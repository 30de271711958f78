"""Preflight of one process: it trains for some steps and leaves nothing, or says what is in the way."""

import errno
import shutil
import time

import pytest
import torch

from pretrain import setup
from pretrain.config import PretrainConfig
from pretrain.engine import watch
from pretrain.preflight import checks, corpora, steps
from pretrain.preflight.preflight import preflight


@pytest.fixture
def make_config(make_model, tiny_corpus, tmp_path):
    def make(corpus=tiny_corpus, **settings):
        small = {"global_batch_size": 10, "micro_batch_size": 4, "max_length": 48, "precision": "fp32"}
        names = {"corpus": [str(corpus)], "model": str(make_model()), "output_dir": str(tmp_path / "runs/run")}
        return PretrainConfig(**{**names, **small, **settings})

    return make


def test_a_run_with_nothing_in_the_way_is_ready_and_nothing_is_left(make_config, tmp_path, capsys):
    assert preflight(make_config(max_steps=3600))
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "READY"
    assert "steps        ok " in said
    assert " tokens/s; 3,600 take " in said
    assert list(tmp_path.iterdir()) == []


def test_what_the_run_would_refuse_is_in_the_way(make_config, tmp_path, capsys):
    output = tmp_path / "runs/run"
    output.mkdir(parents=True)
    (output / "of-mine").write_text("")
    assert not preflight(make_config(warmup_steps=10, max_steps=10))
    said = capsys.readouterr().out
    assert "--warmup_steps 10 is not below the 10 steps of the run: lower it" in said
    assert said.splitlines()[-1].startswith("NOT READY: steps, on ")
    assert [path.name for path in output.iterdir()] == ["of-mine"]


def test_a_length_that_the_run_in_the_output_folder_cannot_have_is_in_the_way(make_config, tmp_path, capsys):
    wsd = {"lr_schedule": "wsd", "warmup_steps": 0}
    setup.set_up(make_config(**wsd, max_steps=8))
    (tmp_path / "runs/run/checkpoints/step-00000008").mkdir(parents=True)
    assert not preflight(make_config(**wsd, max_steps=16))
    assert "holds this run with 8 steps, and no whole checkpoint up to step 6" in capsys.readouterr().out


def test_a_heartbeat_while_the_model_loads_is_in_nobodys_way(make_config, monkeypatch, capsys):
    """Loading takes longer than the watch waits between two heartbeats."""
    plain = setup.fingerprint_once_per_machine

    def slow(*arguments):
        time.sleep(0.3)
        return plain(*arguments)

    for name in ("SHOWN", "BEAT"):
        monkeypatch.setattr(watch, name, 0.02)
    monkeypatch.setattr(setup, "fingerprint_once_per_machine", slow)
    assert preflight(make_config(max_steps=4))


def test_a_folder_that_holds_another_run_is_in_the_way(make_config, tmp_path, capsys):
    """As it would be in that of the run itself; the same run may go on."""
    output = tmp_path / "runs/run"
    output.mkdir(parents=True)
    (output / "of-mine").write_text("")
    assert not preflight(make_config(max_steps=4))
    assert "runs/run is not empty and holds no run: choose another folder" in capsys.readouterr().out
    (output / "of-mine").unlink()
    setup.set_up(make_config(max_steps=4))
    (output / "checkpoints/step-00000001").mkdir(parents=True)
    assert preflight(make_config(max_steps=4, eval_steps=2))
    assert not preflight(make_config(max_steps=4, seed=7))
    assert "holds a different run: its seed is 1, now it is 7" in capsys.readouterr().out


def test_too_little_memory_for_the_engine_is_in_the_way(make_config, monkeypatch, capsys):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(steps, "build_engine", fail)
    assert not preflight(make_config(max_steps=4))
    said = capsys.readouterr().out
    assert "out of memory with 4 pairs of 48 tokens: lower --micro_batch_size" in said
    assert said.splitlines()[-1].startswith("NOT READY: steps, on ")


def test_checkpoints_that_stay_for_good_need_room_too_and_frozen_weights_none(make_config, make_base, monkeypatch):
    rooms = []
    monkeypatch.setattr(checks, "check_room_for_checkpoints", lambda hosts, *room: rooms.append(room) or [])
    settings = {"model": str(make_base()), "max_steps": 100, "keep_checkpoints": 2}
    assert preflight(make_config(**settings, keep_every=10))
    assert preflight(make_config(**settings, adapter="pfeiffer", adapter_size=4))
    (keep, whole), (keep_of_adapter, trained) = rooms
    assert (keep, keep_of_adapter) == (12, 2)
    assert trained < 200_000 < whole


def test_a_shard_that_cannot_be_read_is_named(make_config, monkeypatch, capsys):
    def fail(corpus, number):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(corpora.Corpus, "shard", fail)
    assert not preflight(make_config())
    said = capsys.readouterr().out
    assert ".arrow cannot be read (Input/output error)" in said
    assert said.splitlines()[-1].startswith("NOT READY: corpus, on ")


def test_a_changed_shard_is_in_the_way_of_steps(make_config, tiny_corpus, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    shard = sorted((corpus / "shards").iterdir())[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert not preflight(make_config(corpus))
    said = capsys.readouterr().out
    assert f"{corpus}/shards/{shard.name} does not have the SHA-256 that the manifest says" in said
    assert said.splitlines()[-1].startswith("NOT READY: corpus, on ")
    assert "steps, speed)" in said.splitlines()[-1]
