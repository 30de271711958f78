from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.batches import Feeder
from pretrain.runtime.layout import Layout
from pretrain.step import start_counting

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


def test_after_the_last_step_no_batch_is_made(tiny_corpus, make_stream, monkeypatch):
    stream, made = make_stream(tiny_corpus), []
    make = stream.batch
    monkeypatch.setattr(stream, "batch", lambda first, count: made.append(first) or make(first, count))
    feeder = Feeder(stream, Layout(4, 4, 1), 0, 3, 2, end=5)
    assert [len(feeder.next()) for _ in range(4)] == [1, 1, 0, 0]
    feeder.close()
    assert sorted(made) == [12, 16]
    assert start_counting([], [])().counts == {"num_tokens": 0}


def test_imbalance_is_the_largest_share_over_the_mean(tiny_corpus, make_stream, monkeypatch):
    """Three ranks, whose lists are summed here in place of a collective."""
    stream, layout, sent = make_stream(tiny_corpus), Layout(20, 4, 3), []
    shares = [[stream.batch(a, b - a) for a, b in layout.micro_batches(rank)] for rank in range(3)]
    monkeypatch.setattr("pretrain.runtime.ranks.is_distributed", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    monkeypatch.setattr(
        "pretrain.runtime.ranks.start_sum",
        lambda values: sent.append(values) or (lambda: [sum(column) for column in zip(*sent, strict=True)]),
    )
    for rank, share in enumerate(shares):
        monkeypatch.setattr("torch.distributed.get_rank", lambda own=rank: own)
        finish = start_counting(share, [])
    tokens = [sum(batch.num_tokens for batch in share) for share in shares]
    counted = finish()
    assert counted.counts == {"num_tokens": sum(tokens)}
    assert counted.imbalance == pytest.approx(max(tokens) / (sum(tokens) / 3))
    assert counted.imbalance > 1
    assert not counted.stop
