"""The pool that negatives are drawn from, by the example of its docstring."""

import numpy as np

from data_pipeline.sampling.block import Block, ClassIndex
from data_pipeline.sampling.random_bits import draw_random_bits
from objectives.negatives import Pool


def test_the_example_of_the_docstring(tools):
    documents = [[[0] * sentences for sentences in document] for document in ([2, 4, 3], [2, 5])]
    block = Block([tools.shard_of(documents)], "train", lambda sentences, paragraphs: sentences > 0)
    at_least_3 = ClassIndex.of(block.num_sentences[None] >= 3)
    assert at_least_3.paragraphs.tolist() == [1, 2, 4]
    pool = Pool.of(block, np.array([1]), at_least_3, np.array([[0]]))
    assert (pool.start.item(), pool.inside.item(), pool.place.item()) == (0, 2, 0)
    assert (pool.count_inside().item(), pool.count_outside().item()) == (1, 1)
    assert pool.hard.tolist() == [[True, False, False, False]]
    assert pool.draw(draw_random_bits(1, "test", 0, 1, 4)).tolist() == [[2, 4, 4, 4]]
