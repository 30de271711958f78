import threading

import pytest

from data_pipeline.sampling.block_cache import BlockCache

SECONDS = 20  # after which a test has failed


def test_a_block_is_built_outside_any_lock():
    """One can be built while another is."""
    cache, there = BlockCache(2), threading.Event()

    def build_slowly():
        assert there.wait(SECONDS)
        return "slow"

    cache.fetch_ahead("slow", build_slowly)
    assert cache.get("quick", lambda: "quick") == "quick"
    there.set()
    assert cache.get("slow", lambda: "never") == "slow"


def test_a_block_is_built_once_and_the_oldest_goes_first():
    cache, built = BlockCache(2), []

    def make(name):
        return lambda: built.append(name) or name

    for name in "aabacab":
        assert cache.get(name, make(name)) == name
    assert built == ["a", "b", "c", "b"]


def test_an_error_in_the_background_is_raised_where_the_block_is_asked_for():
    cache, failed = BlockCache(2), threading.Event()

    def fail():
        failed.set()
        raise ValueError("damaged")

    cache.fetch_ahead("a", fail)
    assert failed.wait(SECONDS)
    with pytest.raises(ValueError, match="damaged"):
        cache.get("a", fail)
    assert cache.get("a", lambda: "mended") == "mended"
