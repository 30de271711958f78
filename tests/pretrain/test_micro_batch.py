"""The size of a micro-batch that nobody has said."""

import pytest
import torch

from pretrain.config import PretrainConfig
from pretrain.micro_batch import fit_pairs
from pretrain.setup import set_up
from pretrain.summary import describe_run
from tests.pretrain.steps import ask_in_step


@pytest.mark.parametrize(
    ("memory", "most", "pairs"), [(1000.0, 4096, 75), (1000.0, 30, 30), (1.0, 4096, 1), (1e6, 10**6, 84990)]
)
def test_as_many_pairs_as_fit_with_room(memory, most, pairs):
    tried = []

    def measure(count):
        tried.append(count)
        return 100.0 + 10.0 * count

    assert fit_pairs(measure, memory, most) == pairs
    assert max(tried) <= 12
    assert pairs == 1 or 100.0 + 10.0 * pairs <= 0.85 * memory


@pytest.fixture
def settings(make_model, tiny_corpus, tmp_path):
    common = {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    return common | {"precision": "fp32", "eval_pairs": 0, "max_length": 48, "max_steps": 4, "global_batch_size": 20}


def test_a_run_keeps_the_micro_batch_that_was_found(settings, monkeypatch):
    """Whatever would be found when it resumes; one that is given changes it."""
    from pretrain.run import pretrain
    from pretrain.runtime.stop import Stopped

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.setup.choose_micro_batch", lambda *_: 7)
        ask_in_step(patch, 2)
        with pytest.raises(Stopped):
            pretrain(PretrainConfig(**settings))
    monkeypatch.setattr("pretrain.setup.choose_micro_batch", lambda *_: 3)
    assert set_up(PretrainConfig(**settings)).layout.micro == 7
    assert set_up(PretrainConfig(**settings, micro_batch_size=5)).layout.micro == 5


def test_on_a_processor_it_is_32_or_all_pairs_of_a_rank(settings):
    assert set_up(PretrainConfig(**settings)).layout.micro == 20
    assert set_up(PretrainConfig(**settings | {"global_batch_size": 100})).layout.micro == 32


@pytest.mark.parametrize(
    ("compiled", "micro", "advice"),
    [(False, 4, "raise --micro_batch_size and give --compile"), (True, 20, "raise --global_batch_size")],
)
def test_few_tokens_on_a_gpu_are_warned_of(compiled, micro, advice, settings, monkeypatch):
    setup = set_up(PretrainConfig(**settings, micro_batch_size=micro))
    assert not [line for line in describe_run(setup, setup.model) if "too few" in line]
    setup.config.compile = compiled
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    (line,) = (line for line in describe_run(setup, setup.model) if "too few to keep a GPU busy" in line)
    assert line.endswith(advice)
