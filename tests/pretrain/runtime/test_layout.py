"""How a batch is cut, the short last one of an epoch too."""

from itertools import pairwise

import pytest

from pretrain.runtime.layout import Layout


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
