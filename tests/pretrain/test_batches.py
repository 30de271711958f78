from unittest import mock

import pytest
import torch

from pretrain.batches import Feeder, choose_micro_batch, fit_pairs, make_micro_batches, pin, to_tensors
from pretrain.engine.layout import Layout
from tests.cases import assert_equal


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_batches_do_not_depend_on_the_number_of_threads(num_workers, tiny_corpus, make_stream):
    stream = make_stream(tiny_corpus, masking=True)
    layout = Layout(20, 6, 2)
    feeder = Feeder(stream, layout, 1, 3, num_workers)
    for step in range(3, 9):
        for batch, expected in zip(feeder.next(), make_micro_batches(stream, layout, 1, step), strict=True):
            assert_equal(batch, expected)
    feeder.close()


def test_a_pinned_batch_gives_the_same_tensors(make_stream, tiny_corpus):
    batch = make_stream(tiny_corpus, masking=True).batch(3, 5)
    pinned = pin(batch)
    expected = to_tensors(batch, torch.device("cpu"))
    assert set(pinned.arrays) == set(batch.arrays)
    for name, place in pinned.offsets.items():
        array = pinned.arrays[name]
        there = pinned.buffer[place : place + array.nbytes].view(expected[name].dtype)
        assert torch.equal(there, expected[name])


@pytest.mark.parametrize(
    ("memory", "most", "pairs"),
    [(1000.0, 4096, 75), (1000.0, 30, 30), (1.0, 4096, 1), (159.0, 4096, 3), (1e6, 10**6, 84990)],
)
def test_as_many_pairs_as_fit_with_room(memory, most, pairs):
    tried = []

    def measure(count):
        tried.append(count)
        return 100.0 + 10.0 * count

    assert fit_pairs(measure, memory, most) == pairs
    assert max(tried) <= 12
    assert pairs == 1 or 100.0 + 10.0 * pairs <= 0.85 * memory


def test_weights_that_do_not_fit_are_no_traceback(monkeypatch):
    """A pair is tried in the run, which refuses where that fails."""
    linear = torch.nn.Linear(2, 2)
    refuse = mock.Mock(side_effect=torch.OutOfMemoryError)
    monkeypatch.setattr(torch.nn.Linear, "to", refuse)
    for name, value in {
        "is_available": True,
        "mem_get_info": (1, 1),
        "memory_allocated": 0,
        "empty_cache": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert choose_micro_batch(linear, None, "fp32", 1, 8) == 1
    assert refuse.called
