"""ICT: SP with one sentence. What is the same is tested with SP."""

from collections import Counter

import numpy as np
import pytest

from data_pipeline.sampling.pairs import HARD, POSITIVE


@pytest.mark.parametrize("block_anchors", [60, 10**6])
def test_pairs_are_as_defined(any_corpus, make_stream, tools, block_anchors):
    stream = make_stream(any_corpus, objective="ict", block_anchors=block_anchors)
    count = min(stream.epoch_pairs, 3000)
    kinds = tools.check_stream(stream, count=count)
    assert kinds[POSITIVE] == count // 5
    assert kinds[HARD] > 0.8 * 2 * count / 5


def test_every_sentence_is_as_often_the_question(tools):
    documents = [[list(range(12 * d, 12 * d + 5)), list(range(12 * d + 5, 12 * d + 12))] for d in range(8)]
    these = tools.sampled("ict", [documents], repeat=1000)
    assert (these.a.end - these.a.start == 1).all()
    for count in (5, 7):
        asked = Counter(these.a.start[these.b.end[:, 0] == count, 0].tolist())
        tools.as_likely((asked[k] for k in range(count)), [1] * count)


def test_negatives_are_paragraphs_of_any_number_of_sentences_alike(tools):
    """Each has the one sentence that is to be left out."""
    counts = [2, 3, 9]
    documents = [[list(range(24 * d + 6 * k, 24 * d + 6 * k + c)) for k, c in enumerate(counts)] for d in range(8)]
    these = tools.sampled("ict", [documents], repeat=1000)
    easy = Counter(these.b.end[:, 3:].ravel().tolist())
    tools.as_likely((easy[c] for c in counts), [1, 1, 1])
    assert np.array_equal((these.kinds == HARD).sum(axis=1), np.full(len(these.kinds), 2))
