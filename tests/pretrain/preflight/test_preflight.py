"""Preflight of one process: it trains for some steps and leaves nothing, or says what is in the way."""

import shutil

import pytest

from pretrain.config import PretrainConfig
from pretrain.preflight.preflight import preflight


@pytest.fixture
def make_config(make_model, tiny_corpus, tmp_path):
    def make(corpus=tiny_corpus, **settings):
        small = {"global_batch_size": 10, "micro_batch_size": 4, "max_length": 48, "precision": "fp32"}
        names = {"corpus": [str(corpus)], "model": str(make_model()), "output_dir": str(tmp_path / "runs/run")}
        return PretrainConfig(**names, **small, **settings)

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


def test_a_changed_shard_is_in_the_way_of_steps(make_config, tiny_corpus, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    shard = sorted((corpus / "shards").iterdir())[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert not preflight(make_config(corpus))
    said = capsys.readouterr().out
    assert f"{corpus}: shards/{shard.name} has not the SHA-256 that the manifest says" in said
    assert said.splitlines()[-1].startswith("NOT READY: corpus, on ")
    assert "steps, speed)" in said.splitlines()[-1]
