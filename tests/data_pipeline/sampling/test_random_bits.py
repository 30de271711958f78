import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sampling.random_bits import draw_below, draw_random_bits, make_philox_key, permute

SEEDS = st.integers(0, 2**64)


@given(SEEDS, st.integers(0, 2**40), st.integers(1, 30), st.integers(1, 8), st.data())
def test_any_slice_holds_the_same_words(seed, first, count, quads, data):
    whole = draw_random_bits(seed, "pairs", first, count, 4 * quads)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    part = draw_random_bits(seed, "pairs", first + start, stop - start, 4 * quads)
    assert np.array_equal(whole[start:stop], part)


def test_seed_and_purpose_change_every_example():
    words = draw_random_bits(1, "pairs", 0, 100, 4)
    for more in (draw_random_bits(2, "pairs", 0, 100, 4), draw_random_bits(1, "mask", 0, 100, 4)):
        assert not (words == more).any()


@given(SEEDS, st.integers(1, 2**31))
def test_bounded_stays_below_the_bound(seed, bound):
    drawn = draw_below(draw_random_bits(seed, "x", 0, 200, 4), bound)
    assert drawn.min() >= 0
    assert drawn.max() < bound


@pytest.mark.parametrize("bound", [2, 3, 5, 17, 100])
def test_bounded_is_about_uniform(bound):
    count = 200_000
    seen = np.bincount(draw_below(draw_random_bits(3, "x", 0, count // 4, 4).ravel(), bound), minlength=bound)
    expected = count / bound
    assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()


@given(st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 5000, 65_535, 65_536, 65_537])), SEEDS)
def test_permute_is_a_bijection(size, seed):
    images = permute(np.arange(size), size, make_philox_key(seed, "order"))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.integers(1, 10**12), SEEDS, st.data())
def test_permute_needs_no_other_position(size, seed, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    key = make_philox_key(seed, "order")
    together = permute(np.array(positions), size, key)
    assert together.tolist() == [int(permute(np.array([p]), size, key)[0]) for p in positions]
    assert ((together >= 0) & (together < size)).all()


def test_permute_depends_on_its_key_and_is_about_uniform():
    """Over many keys each of six positions goes everywhere equally often."""
    keys = [make_philox_key(k, "order") for k in range(3000)]
    images = np.array([permute(np.arange(6), 6, key) for key in keys])
    for position in range(6):
        seen = np.bincount(images[:, position], minlength=6)
        assert (np.abs(seen - 500) < 6 * np.sqrt(500)).all()
