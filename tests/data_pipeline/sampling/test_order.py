from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sampling.order import Order

# Anchors and documents of each shard; a document that counts has at least one anchor.
SHARD = st.integers(0, 40).flatmap(lambda a: st.tuples(st.just(a), st.integers(min(a, 1), a)))
SHARDS = st.lists(SHARD, min_size=1, max_size=12).filter(lambda s: sum(d for _, d in s) >= 2)
BLOCK = st.sampled_from([1, 10, 50, 10**6])


def order_of(shards, seed=1, block_anchors=10**6) -> Order:
    return Order(tuple(a for a, _ in shards), tuple(d for _, d in shards), seed, block_anchors)


def anchors_of(order: Order, first: int, count: int) -> list[tuple[tuple[int, ...], int]]:
    """``(block, paragraph of the block)`` of each anchor."""
    return [(s.shards, int(k)) for s in order.segments(first, count) for k in s.anchors]


@given(SHARDS, st.integers(0, 2**32), BLOCK, st.integers(0, 5))
def test_every_anchor_comes_once_an_epoch(shards, seed, block_anchors, epoch):
    order = order_of(shards, seed, block_anchors)
    size = order.epoch_anchors
    seen = anchors_of(order, epoch * size, size)
    blocks = {block for block, _ in seen}
    assert sorted(s for block in blocks for s in block) == [k for k, (a, _) in enumerate(shards) if a]
    expected = [(block, k) for block in blocks for k in range(sum(shards[s][0] for s in block))]
    assert sorted(seen) == sorted(expected)
    assert all(sum(shards[s][1] for s in block) >= 2 for block in blocks)  # documents


@given(SHARDS, st.integers(1, 60))
def test_a_block_is_no_larger_than_asked_unless_two_documents_need_it(shards, block_anchors):
    order = order_of(shards, 3, block_anchors)
    blocks = list(dict.fromkeys(s.shards for s in order.segments(0, order.epoch_anchors)))
    for block in blocks:
        size = sum(shards[s][0] for s in block)
        lone = any(shards[s][1] < 2 for s in block)  # a document, which needs another shard's
        assert size <= block_anchors or len(block) == 1 or lone


def test_a_block_has_no_more_shards_than_asked():
    """Unless two documents need them."""
    counts = [(5, 2)] * 20 + [(9, 3)] * 20
    order = Order(tuple(a for a, _ in counts), tuple(d for _, d in counts), 4, block_shards=3)
    blocks = {segment.shards for segment in order.segments(0, order.epoch_anchors)}
    assert sorted(shard for block in blocks for shard in block) == list(range(40))
    assert max(map(len, blocks)) == 3
    single = Order((5, 5, 5), (1, 1, 1), 4, block_shards=1)
    assert [len(segment.shards) for segment in single.segments(0, 15)] == [3]


def test_epochs_and_seeds_differ():
    shards = [(50, 5)] * 6
    order = order_of(shards, 1, 100)
    epoch = anchors_of(order, 0, 300)
    assert anchors_of(order, 300, 300) != epoch
    assert anchors_of(order_of(shards, 2, 100), 0, 300) != epoch
    assert anchors_of(order_of(shards, 1, 100), 0, 300) == epoch
    assert [block for block, _ in anchors_of(order, 300, 300)] != [block for block, _ in epoch]
    assert anchors_of(order_of(shards), 300, 300) != anchors_of(order_of(shards), 0, 300)
