from collections import Counter

import numpy as np
import pytest

from data_pipeline.sampling.pairs import EASY, HARD

# 12 documents of four paragraphs of six sentences, all different
EVEN = [[[[100 * d + 10 * p + s for s in range(6)] for p in range(4)] for d in range(12)]]


@pytest.fixture(scope="module")
def even(tools):
    return tools.sampled("ssp", EVEN, repeat=800)


def count_sentences(spans):
    return (spans.end - spans.start)[:, 0]


def test_a_has_one_to_three_sentences_equally_often(even, tools):
    tools.as_likely(Counter(count_sentences(even.a).tolist()).values(), [1] * 3)


@pytest.mark.parametrize(("a_count", "b_count"), [(1, 1), (2, 2), (1, 3), (3, 1), (2, 4)])
def test_every_way_to_place_the_spans_is_as_likely(even, tools, a_count, b_count):
    rows = (count_sentences(even.a) == a_count) & (count_sentences(even.b) == b_count)
    slack = 6 - a_count - b_count
    ways = Counter(zip(even.a.start[rows, 0].tolist(), even.b.start[rows, 0].tolist(), strict=True))
    tools.as_likely(ways.values(), [1] * ((slack + 1) * (slack + 2)))


def test_easy_negatives_are_uniform_over_other_documents(even, tools):
    rows = even.block.document[even.a.paragraph[:, 0]] == 5
    drawn = Counter(even.b.paragraph[rows][even.kinds[rows] == EASY].tolist())
    tools.as_likely(drawn.values(), [1] * 44)


def test_hard_negatives_are_uniform_over_the_other_paragraphs(even, tools):
    rows = even.a.paragraph[:, 0] == even.block.document_first[3] + 1
    for slot in (1, 2):
        tools.as_likely(Counter(even.b.paragraph[rows, slot].tolist()).values(), [1] * 3)
    together = Counter(tuple(sorted(pair)) for pair in even.b.paragraph[rows, 1:3].tolist())
    tools.as_likely(together.values(), [1] * 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_negatives_span_is_uniform_in_its_paragraph(even, tools, count):
    start, end = (x[:, 1:].ravel()[::7] for x in (even.b.start, even.b.end))
    tools.as_likely(Counter(start[end - start == count].tolist()).values(), [1] * (7 - count))


def test_draws_of_one_epoch_say_nothing_of_the_next(even):
    """The same place in the order has other random numbers there."""
    before = (even.b.end <= even.a.start)[:, 0]
    for choice, chance in ((count_sentences(even.a), 1 / 3), (before, 1 / 2)):
        epochs = choice.reshape(-1, 48)
        alike = epochs[1:] == epochs[:-1]
        assert abs(alike.mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / alike.size)


def test_freely_drawn_negatives_come_from_paragraphs_of_one_sentence_too(tools):
    """As the paper says; it names no least number. Matched ones do not: a lone sentence is longer than others."""
    shards = [[[[10 * d, 10 * d + 1], *([10 * d + k] for k in range(2, 6))] for d in range(10)]]
    for sampling, lone in (("paper", 4 / 5), ("matched", 0)):
        these = tools.sampled("ssp", shards, repeat=100, sampling=sampling)
        of_one = these.block.num_sentences[these.b.paragraph[:, 1:]] == 1
        assert abs(of_one[these.kinds[:, 1:] == EASY].mean() - lone) < 0.05
        assert ((these.kinds == HARD).sum(axis=1) == (2 if sampling == "paper" else 0)).all()
