from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.batches import Feeder
from pretrain.runtime.layout import Layout

sizes = st.integers(1, 500)


@given(sizes, sizes, st.integers(1, 40))
def test_every_example_belongs_to_one_micro_batch(size, micro, world):
    layout = Layout(size, micro, world)
    cuts = [span for rank in range(world) for span in layout.micro_batches(rank)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == size
    assert all(end == start for (_, end), (start, _) in pairwise(cuts))


@given(sizes, sizes, st.integers(1, 40))
def test_micro_batches_keep_to_their_size_and_ranks_to_one_number_of_steps(size, micro, world):
    layout = Layout(size, micro, world)
    for rank in range(world):
        spans = layout.micro_batches(rank)
        assert len(spans) == layout.accumulation
        assert all(0 <= end - start <= micro for start, end in spans)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_batches_do_not_depend_on_the_number_of_threads(num_workers, tiny_corpus, make_stream):
    stream = make_stream(tiny_corpus, masking=True)
    layout = Layout(20, 6, 2)
    feeder = Feeder(stream, layout, 1, 3, num_workers)
    for step in range(3, 9):
        for batch, (start, end) in zip(feeder.next(), layout.micro_batches(1), strict=True):
            expected = stream.batch(step * 20 + start, end - start)
            assert np.array_equal(batch.input_ids, expected.input_ids)
            assert np.array_equal(batch.masked_positions, expected.masked_positions)
    feeder.close()
