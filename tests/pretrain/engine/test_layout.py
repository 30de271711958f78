"""How a batch is cut, the short last one of an epoch too."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.engine.layout import Layout, cut_evenly

lengths = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 500)), max_size=60)


@pytest.mark.parametrize(("size", "micro", "world"), [(23, 4, 1), (8, 3, 2), (5, 1, 3), (3, 2, 8)])
def test_a_short_batch_is_cut_whole_into_as_many_micro_batches_as_a_full_one(size, micro, world):
    layout = Layout(size, micro, world)
    for count in range(size + 1):
        shares = [layout.micro_batches(rank, count) for rank in range(world)]
        assert {len(share) for share in shares} == {layout.accumulation}
        spans = [span for share in shares for span in share]
        assert (spans[0][0], spans[-1][1]) == (0, count)
        assert all(one[1] == other[0] for one, other in pairwise(spans))
        assert max(end - start for start, end in spans) <= layout.largest
    assert layout.micro_batches(0) == layout.micro_batches(0, size)


@given(lengths, st.integers(1, 20))
def test_pieces_hold_everything_once_in_order_and_are_near_equal(lengths, pieces):
    lengths = np.array(lengths, dtype=np.int32)
    cuts = cut_evenly(lengths, pieces)
    assert len(cuts) == pieces
    assert (cuts[0][0], cuts[-1][1]) == (0, len(lengths))
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    assert sum(start == end for start, end in cuts) == max(pieces - len(lengths), 0)
    longest = max(lengths, default=0)
    assert all(lengths[start:end].sum() <= lengths.sum() / pieces + longest for start, end in cuts)
    assert max(end - start for start, end in cut_evenly(np.ones_like(lengths), pieces)) == -(-len(lengths) // pieces)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4), st.booleans(), st.data())
def test_no_micro_batch_has_more_tokens_than_the_full_pairs(size, micro, world, padded, data):
    layout, longest = Layout(size, micro, world, padded), 50
    every = np.array(data.draw(st.lists(st.integers(1, longest), min_size=size, max_size=size)))
    shares = layout.deal(every) if world > 1 else [(0, size)]
    for start, end in shares:
        lengths = every[start:end]
        cuts = layout.cut(lengths)
        assert len(cuts) == layout.accumulation
        assert all(lengths[a:b].sum() <= layout.full_pairs * longest for a, b in cuts)


def test_ranks_are_dealt_equal_tokens_and_those_that_pad_equal_pairs():
    lengths = np.random.default_rng(0).integers(10, 128, 4096)

    def find_imbalance(spans):
        tokens = [lengths[start:end].sum() for start, end in spans]
        return max(tokens) / np.mean(tokens)

    layout = Layout(4096, 8, 512)
    by_pairs = [layout.share(rank) for rank in range(512)]
    assert find_imbalance(by_pairs) > 1.25
    assert find_imbalance(layout.deal(lengths)) < 1.2
    assert replace(layout, padded=True).deal(lengths) == by_pairs
