from hypothesis import given
from hypothesis import strategies as st

from pretrain.runtime.engine import learning_rate_of


@given(st.integers(2, 500), st.data())
def test_rises_to_the_peak_and_falls_towards_zero(total, data):
    warmup = data.draw(st.integers(0, total - 1))
    rates = [learning_rate_of(k, 1e-4, warmup, total) for k in range(total)]
    peak = rates.index(max(rates))
    assert abs(rates[peak] - 1e-4) < 1e-12
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(rate > 0 for rate in rates)
    assert learning_rate_of(total, 1e-4, warmup, total) == 0


def test_both_sides_are_straight():
    rates = [learning_rate_of(k, 1.0, 4, 12) for k in range(12)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
