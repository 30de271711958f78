import numpy as np
import pytest
import torch

from pretrain.batches import Feeder, make_micro_batches, pin, to_tensors
from pretrain.engine.layout import Layout
from pretrain.step import start_count_reduction


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_batches_do_not_depend_on_the_number_of_threads(num_workers, tiny_corpus, make_stream):
    stream = make_stream(tiny_corpus, masking=True)
    layout = Layout(20, 6, 2)
    feeder = Feeder(stream, layout, 1, 3, num_workers)
    for step in range(3, 9):
        for batch, expected in zip(feeder.next(), make_micro_batches(stream, layout, 1, step), strict=True):
            assert np.array_equal(batch.input_ids, expected.input_ids)
            assert np.array_equal(batch.masked_positions, expected.masked_positions)
    feeder.close()


def test_micro_batches_hold_the_share_in_order_and_near_equal_tokens(tiny_corpus, make_stream):
    stream, layout = make_stream(tiny_corpus, masking=True), Layout(90, 16, 2)
    batches = make_micro_batches(stream, layout, 1, 7)
    start, end = layout.deal(stream.batch(7 * 90, 90).lengths)[1]
    assert np.array_equal(np.concatenate([batch.index for batch in batches]), 7 * 90 + np.arange(start, end))
    tokens = [batch.num_tokens for batch in batches]
    assert len(tokens) == 3
    assert max(tokens) - min(tokens) <= stream.batch(7 * 90, 90).lengths.max()


def test_a_rank_without_pairs_has_empty_micro_batches(tiny_corpus, make_stream):
    stream, layout = make_stream(tiny_corpus), Layout(3, 1, 5)
    assert make_micro_batches(stream, layout, 4, 0) == [None]
    found = [
        batch.index.tolist() for rank in range(5) for batch in make_micro_batches(stream, layout, rank, 2) if batch
    ]
    assert found == [[6], [7], [8]]


def test_after_the_last_step_no_batch_is_made(tiny_corpus, make_stream, monkeypatch):
    stream, made = make_stream(tiny_corpus), []
    make = stream.batch
    monkeypatch.setattr(stream, "batch", lambda first, count: made.append(first) or make(first, count))
    feeder = Feeder(stream, Layout(4, 4, 1), 0, 3, 2, end=5)
    assert [len(feeder.next()) for _ in range(4)] == [1, 1, 0, 0]
    feeder.close()
    assert sorted(made) == [12, 16]
    assert start_count_reduction([], [])().counts == {"num_tokens": 0}


def test_a_pinned_batch_gives_the_same_tensors_by_one_copy(make_stream, tiny_corpus, monkeypatch):
    """On torch's meta device, which stands in for a GPU, nothing but shapes and types can be seen."""
    batch = make_stream(tiny_corpus, masking=True).batch(3, 5)
    pinned = pin(batch)
    expected = to_tensors(batch, torch.device("cpu"))
    assert set(pinned.arrays) == set(batch.arrays)
    for name, place in pinned.places.items():
        array = pinned.arrays[name]
        there = pinned.buffer[place : place + array.nbytes].view(expected[name].dtype)
        assert torch.equal(there, expected[name])
    copies = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda *given, **named: copies.append(named) or to(*given, **named))
    moved = to_tensors(pinned, torch.device("meta"))
    assert copies == [{"non_blocking": True}]
    assert {n: (x.shape, x.dtype) for n, x in moved.items() if n != "max_length"} == {
        n: (x.shape, x.dtype) for n, x in expected.items() if n != "max_length"
    }
    assert moved["max_length"] == expected["max_length"]
