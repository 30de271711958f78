from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.recovery import MIN_HISTORY, is_spike, tell_skipped
from pretrain.run import Pretraining
from pretrain.state import RunProgress


def falling(count, noise=0.02):
    generator = np.random.default_rng(1)
    return [3 + 7 * 0.95**k + noise * generator.standard_normal() for k in range(count)]


def test_a_falling_noisy_loss_has_no_spike():
    losses = falling(200)
    assert not any(is_spike(losses[k], losses[:k]) for k in range(200))


@pytest.mark.parametrize(("at", "times"), [(MIN_HISTORY, 1.7), (30, 1.5), (150, 1.2)])
def test_a_leap_is_one(at, times):
    """While the loss still falls fast, only a higher one."""
    losses = falling(200)
    assert is_spike(times * losses[at - 1], losses[:at])


def test_too_little_history_says_nothing():
    assert not is_spike(1e9, falling(MIN_HISTORY - 1))


def test_an_earlier_spike_hides_no_later_one():
    losses = falling(60)
    losses[50] = 40.0
    assert is_spike(20.0, losses[:55])


def count(precision, flags, **settings):
    """The run's progress, its lines on the screen and those in its log, after updates that were skipped or not."""
    said, logged = [], []
    run = SimpleNamespace(
        setup=SimpleNamespace(
            config=PretrainConfig(**settings), layout=SimpleNamespace(size=10), facts={"precision": precision}
        ),
        progress=RunProgress(),
        schedule=SimpleNamespace(peak=1e-4),
        skips=[(step, torch.tensor(flag)) for step, flag in enumerate(flags)],
        most_skips=PretrainConfig(**settings).max_skipped_steps,
        tell_skipped=lambda step: tell_skipped(run, step),
        log=SimpleNamespace(write=lambda step, split, values: logged.append(step)),
        note=lambda *_, **__: None,
        say=said.append,
    )
    Pretraining.count_skips(run)
    return run.progress, said, logged


@pytest.mark.parametrize(
    ("precision", "told"), [("fp16", ["step 5"]), ("bf16", ["step 1", "step 4", "step 5"]), ("fp32", None)]
)
def test_a_lone_overflow_of_fp16_is_logged_and_not_told(precision, told):
    progress, said, logged = count(precision, [False, True, False, False, True, True])
    assert [line.partition(":")[0] for line in said] == (told or ["step 1", "step 4", "step 5"])
    assert logged == [2, 5, 6]
    assert (progress.skipped, progress.skipped_in_row) == (3, 2)


def test_the_command_that_shows_the_pairs_of_a_skipped_update_names_what_they_depend_on():
    for given, names in (
        ({"sampling": "paper"}, "--corpus, --sampling"),
        ({"corpus_schedule": "round_robin"}, "--corpus, --corpus_schedule, --global_batch_size"),
    ):
        _, (said,), _ = count("fp32", [True], **given)
        assert said.endswith(f"--objective ssp, with this run's {names}")


def test_a_lone_overflow_counts_for_the_guard_all_the_same():
    with pytest.raises(KinspanError, match="in 1 steps in a row"):
        count("fp16", [True], max_skipped_steps=1)
