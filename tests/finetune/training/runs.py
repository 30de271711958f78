"""What the tests of fine-tuning runs share: ends of a run, and what they compare."""

import json
from contextlib import contextmanager

import pytest
from safetensors.torch import load_file

from finetune.training import train
from finetune.training.config import FinetuneConfig
from tests.pretrain.steps import same


def small_config(data, model, output, **settings):
    """Settings that train the model for an epoch on a folder of small sets."""
    fast = {"epochs": 1, "batch_size": 8, "max_length": 32, "precision": "fp32", "learning_rate": 1e-3}
    return FinetuneConfig(f"files={data}", model=str(model), output_dir=str(output), **{**fast, **settings})


class Killed(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


def weights(folder):
    return load_file(str(folder / "best/model.safetensors"))


def logged(folder, *splits):
    """The lines of the log without what is measured by the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{k: v for k, v in line.items() if k != "pairs_per_second"} for line in lines]
    return [line for line in lines if not splits or line["split"] in splits]


def untimed(summary):
    return {k: v for k, v in summary.items() if k != "wall_seconds"}


@contextmanager
def killed_in_step(monkeypatch, step):
    """A kill while that step, the first being 0, is under way."""
    update = train._Run.update

    def dies(run, groups, now):
        if now == step:
            raise Killed
        return update(run, groups, now)

    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "update", dies)
        with pytest.raises(Killed):
            yield


def equal_runs(one, two):
    """Whether two runs, each a summary and a folder, ended bit-identical."""
    assert untimed(one[0]) == untimed(two[0])
    assert logged(one[1]) == logged(two[1])
    return same(weights(one[1]), weights(two[1]))
