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


def test_a_block_that_could_not_be_built_ahead_is_left_to_who_asks_for_it():
    cache, tried = BlockCache(2), threading.Semaphore(0)

    def fail():
        tried.release()
        raise ValueError("damaged")

    cache.fetch_ahead("a", fail)
    assert tried.acquire(timeout=SECONDS)
    with pytest.raises(ValueError, match="damaged"):
        cache.get("a", fail)  # waits for the one above, or tries by itself
