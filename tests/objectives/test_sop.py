from collections import Counter

import pytest

from data_pipeline.core.errors import KinspanError
from objectives import parse_mixture
from objectives.contrastive import as_contrastive

COUNTS = [2, 3, 5, 9]
EVEN = [[[list(range(20 * d, 20 * d + c)) for c in COUNTS] for d in range(8)]]


@pytest.fixture(scope="module")
def even(tools):
    return tools.sampled("sop", EVEN, repeat=4000)


@pytest.mark.parametrize("sentences", COUNTS)
def test_the_counts_of_the_two_texts_are_exchangeable(even, tools, sentences):
    """In the order of the text: as often (2, 3) as (3, 2), or the longer one would tell which came first."""
    rows = even.block.num_sentences[even.a.paragraph[:, 0]] == sentences
    a, b = ((spans.end - spans.start)[rows, 0].tolist() for spans in (even.a, even.b))
    counts = Counter(zip(a, b, strict=True))
    pairs = {(x, y) for x in range(1, 5) for y in range(1, 5) if x + y <= sentences}
    assert set(counts) == pairs
    for x, y in pairs:
        if x < y:
            tools.as_likely((counts[x, y], counts[y, x]), [1, 1])


def test_totals_are_as_likely_each_up_to_what_the_paragraph_has(even, tools):
    rows = even.block.num_sentences[even.a.paragraph[:, 0]] == 9
    total = Counter((even.b.end - even.a.start)[rows, 0].tolist())
    tools.as_likely((total[k] for k in range(2, 9)), [1] * 7)


@pytest.mark.parametrize("total", [2, 5, 8])
def test_pairs_begin_anywhere_in_the_paragraph(even, tools, total):
    a, b = even.a[:, 0], even.b[:, 0]
    rows = (even.block.num_sentences[a.paragraph] == 9) & (b.end - a.start == total)
    starts = Counter(a.start[rows].tolist())
    tools.as_likely((starts[k] for k in range(10 - total)), [1] * (10 - total))
    assert sum(starts.values()) == rows.sum()


def test_no_pair_reads_the_same_in_both_orders(tools):
    these = tools.sampled("sop", [[[[1, 1, 2, 3, 3]], [[4, 5, 6]]]], repeat=300)
    assert not any(
        x == y for x, y in zip(*(tools.texts(these.block, s[:, 0]) for s in (these.a, these.b)), strict=True)
    )


def test_its_negatives_are_the_query_itself_and_train_no_bi_encoder():
    with pytest.raises(KinspanError, match="--own_negatives"):
        as_contrastive(parse_mixture("ssp+sop"), own_negatives=1)
