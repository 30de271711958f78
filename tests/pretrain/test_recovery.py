import numpy as np
import pytest

from pretrain.recovery import MIN_HISTORY, is_spike


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
