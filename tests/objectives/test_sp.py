"""SP, and ICT, which is SP with an A of one sentence."""

from collections import Counter

import numpy as np
import pytest

from data_pipeline.sampling.pairs import EASY, HARD
from tests.objectives.conftest import paragraphs_of

COUNTS = [2, 2, 3, 4, 6, 7]
EVEN = [[paragraphs_of(COUNTS, 24 * d) for d in range(10)]]  # ten documents alike, in one shard


@pytest.fixture(scope="module")
def even(tools):
    return tools.sampled("sp", EVEN, repeat=1500)


def test_a_has_one_to_three_sentences_as_often_as_the_paragraph_allows(even, tools):
    size = (even.a.end - even.a.start)[:, 0]
    sentences = even.block.num_sentences[even.a.paragraph[:, 0]]
    for count, most in ((3, 2), (4, 3), (6, 3), (7, 3)):
        sizes = Counter(size[sentences == count].tolist())
        tools.as_likely((sizes[k + 1] for k in range(most)), [1] * most)
        assert sum(sizes.values()) == (sentences == count).sum()


def test_spans_are_taken_from_all_places(even, tools):
    """A, and what is left out of negatives, as often here as there in the paragraph."""
    sentences, removed = even.b.end, even.b.hole_end - even.b.hole_start
    for slots in (slice(0, 1), slice(1, 3), slice(3, 5)):
        for count, size in ((2, 1), (4, 1), (4, 3), (7, 1), (7, 2), (7, 3)):
            these = (sentences[:, slots] == count) & (removed[:, slots] == size)
            places = Counter(even.b.hole_start[:, slots][these].tolist())
            tools.as_likely((places[k] for k in range(count - size + 1)), [1] * (count - size + 1))


def gives(sentences, size):
    """How likely an A of a paragraph of so many sentences has this size."""
    most = min(sentences - 1, 3)
    return (size <= most) / most


def test_easy_negatives_are_drawn_by_how_likely_they_would_give_such_an_a(even, tools):
    size = (even.a.end - even.a.start)[:, 0]
    document = even.block.document[even.a.paragraph[:, 0]]
    outside = [p for p in range(60) if p // 6 != 4]
    for s in (1, 2, 3):
        rows = (size == s) & (document == 4)
        drawn = Counter(even.b.paragraph[rows][even.kinds[rows] == EASY].tolist())
        likely = {p: gives(COUNTS[p % 6], s) for p in outside}
        assert set(drawn) == {p for p in outside if likely[p]}
        tools.as_likely((drawn[p] for p in sorted(drawn)), (likely[p] for p in sorted(drawn)))


@pytest.mark.parametrize("number", range(6))
def test_hard_negatives_are_drawn_by_how_likely_they_would_give_such_an_a(even, tools, number):
    """The first from all other paragraphs, the second from those that are left."""
    anchors, size = even.a.paragraph[:, 0], (even.a.end - even.a.start)[:, 0]
    for s in range(1, min(COUNTS[number] - 1, 3) + 1):
        likely = {p: gives(COUNTS[p], s) for p in range(6) if p != number and gives(COUNTS[p], s)}
        total = sum(likely.values())
        both = {(p, q): likely[p] * likely[q] / (total - likely[p]) for p in likely for q in likely if p != q}
        rows = (anchors % 6 == number) & (size == s)
        drawn = Counter(map(tuple, (even.b.paragraph[rows, 1:3] % 6).tolist()))
        assert set(drawn) == set(both)
        tools.as_likely((drawn[pair] for pair in both), both.values())


def test_a_is_no_longer_than_what_another_paragraph_of_the_document_can_lose(tools):
    """Else the document's hard negatives would be given up."""
    documents = [paragraphs_of([9, 3], 20 * d) for d in range(6)]
    these = tools.sampled("sp", [documents], repeat=200)
    tools.check("sp", [these])
    size = (these.a.end - these.a.start)[:, 0]
    assert Counter(size[these.b.end[:, 0] == 9].tolist()).keys() == {1, 2}
    assert (these.kinds == HARD).sum(axis=1).tolist() == [1] * len(size)


# ICT


def test_every_sentence_is_as_often_the_question(tools):
    documents = [paragraphs_of([5, 7], 12 * d) for d in range(8)]
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
