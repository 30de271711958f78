import threading

import numpy as np
import pytest

from data_pipeline.sampling.anchors import open_block
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
    while tried.acquire(blocking=False):
        pass
    cache.fetch_ahead("a", fail)
    assert not tried.acquire(timeout=0.2)


def test_the_next_block_is_built_by_another_thread_while_the_present_one_is_used(tiny_corpus, make_stream, monkeypatch):
    masked = make_stream(tiny_corpus, seed=3, masking=True, block_anchors=60)
    built, alike = [], [masked.batch(first, 5) for first in range(0, masked.epoch_pairs, 5)]

    def note(corpus, shards, *rest):
        built.append((shards, threading.get_ident()))
        return open_block(corpus, shards, *rest)

    monkeypatch.setattr("data_pipeline.sampling.stream.open_block", note)
    fresh = make_stream(tiny_corpus, seed=3, masking=True, block_anchors=60)
    [whole] = fresh.orders.values()
    expected = list(dict.fromkeys(segment.shards for segment in whole.segments(0, whole.epoch_anchors)))
    assert len(expected) >= 3
    for number, batch in enumerate(alike):
        assert np.array_equal(fresh.batch(5 * number, 5).input_ids, batch.input_ids)
        if number == 0:
            assert [shards for shards, _ in built] == expected[:1]  # the beginning of a block needs no other
    assert [shards for shards, _ in built][: len(expected)] == expected
    assert [thread == threading.get_ident() for _, thread in built[: len(expected)]] == [True] + [False] * (
        len(expected) - 1
    )
