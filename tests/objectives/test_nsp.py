from collections import Counter
from itertools import count

import numpy as np
import pytest

from tests.objectives.conftest import paragraphs_of

PARAGRAPHS, SENTENCES = 3, 9
EVEN = [[paragraphs_of([SENTENCES] * PARAGRAPHS, PARAGRAPHS * SENTENCES * d) for d in range(10)]]


@pytest.fixture(scope="module")
def even(tools):
    return tools.sampled("nsp", EVEN, repeat=3000)


def test_a_and_b_have_each_number_of_sentences_as_often(even, tools):
    a, b = (Counter((spans.end - spans.start)[:, 0].tolist()) for spans in (even.a, even.b))
    tools.as_likely((a[k] for k in (1, 2, 3)), [1] * 3)
    tools.as_likely((b[k] for k in (1, 2, 3, 4, 5)), [1] * 5)
    assert sum(a.values()) == sum(a[k] for k in (1, 2, 3))
    assert sum(b.values()) == sum(b[k] for k in range(1, 6))


@pytest.mark.parametrize(("a_count", "b_count"), [(1, 1), (3, 5), (2, 3)])
def test_pairs_begin_anywhere_in_the_paragraph(even, tools, a_count, b_count):
    a, b = even.a[:, 0], even.b[:, 0]
    rows = (a.end - a.start == a_count) & (b.end - b.start == b_count)
    starts, places = Counter(a.start[rows].tolist()), SENTENCES - a_count - b_count + 1
    tools.as_likely((starts[k] for k in range(places)), [1] * places)
    assert sum(starts.values()) == rows.sum()


def test_negatives_are_uniform_over_the_spans_of_other_documents(even, tools):
    b = even.b[:, 1]
    rows = (even.block.document[even.a.paragraph[:, 0]] == 4) & (b.end - b.start == 4)
    drawn = Counter(b.paragraph[rows].tolist())
    outside = [p for p in range(30) if p // 3 != 4]
    assert set(drawn) == set(outside)
    tools.as_likely((drawn[p] for p in outside), [1] * len(outside))


def test_b_is_no_longer_than_a_paragraph_of_another_document(tools):
    documents = [[list(range(40))], [[50, 51, 52]], [[60, 61]]]
    these = tools.sampled("nsp", [documents], repeat=2000)
    tools.check("nsp", [these])
    longest = np.zeros(3, dtype=int)
    np.maximum.at(longest, these.a.paragraph[:, 0], (these.b.end - these.b.start)[:, 0])
    assert longest.tolist() == [2, 2, 1]


def test_places_of_positives_and_negatives_are_as_likely(tools):
    """Also in paragraphs of few sentences: B alone tells nothing, be it a paragraph's first or last text."""
    sizes, words = (2, 3, 4, 6, 8, 11), count()
    documents = [[[next(words) for _ in range(size)] for size in sizes] for _ in range(10)]
    these = tools.sampled("nsp", [documents], repeat=3000)
    place = np.stack([these.block.num_sentences[these.b.paragraph], these.b.start, these.b.end])
    positive, negative = (Counter(map(tuple, place[:, :, k].T.tolist())) for k in (0, 1))
    cells = sorted(positive | negative)
    assert min(start for _, start, _ in cells) == 1
    observed, expected = (np.array([counts[cell] for cell in cells]) for counts in (negative, positive))
    assert (np.abs(observed - expected) < 5.5 * np.sqrt(observed + expected)).all()
