"""The size of a micro-batch that nobody has said."""

import pytest

from pretrain.batches import fit_pairs
from pretrain.config import PretrainConfig
from tests.pretrain.steps import ask_in_step, set_up_alone


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
    from pretrain.engine.stop import Stopped
    from pretrain.run import pretrain

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.setup.choose_micro_batch", lambda *_: 7)
        ask_in_step(patch, 2)
        with pytest.raises(Stopped):
            pretrain(PretrainConfig(**settings))
    monkeypatch.setattr("pretrain.setup.choose_micro_batch", lambda *_: 3)
    assert set_up_alone(PretrainConfig(**settings)).layout.micro == 7
    assert set_up_alone(PretrainConfig(**settings, micro_batch_size=5)).layout.micro == 5
