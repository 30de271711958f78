from collections import Counter

import numpy as np
import pytest

from tests.objectives.conftest import paragraphs_of


@pytest.mark.parametrize("anchor", [0, 5, 11])
def test_a_positives_b_is_each_other_paragraph_of_the_document_as_often(tools, anchor):
    rng = np.random.default_rng(0)
    documents = [paragraphs_of(rng.integers(1, 61, 12), 720 * d) for d in range(4)]
    these = tools.sampled("psd", [documents], repeat=1500)
    rows = these.a.paragraph[:, 0] == 12 + anchor
    partners = Counter((these.b.paragraph[rows, 0] - 12).tolist())
    others = [p for p in range(12) if p != anchor]
    assert set(partners) == set(others)
    tools.as_likely((partners[p] for p in others), [1] * 11)


def test_negatives_are_among_the_nearest_to_the_positives_b_in_length(any_corpus, make_stream, tools):
    for these in tools.groups(make_stream(any_corpus, objective="psd"), 0, 3000):
        block = these.block
        lengths = block.count_tokens(block.take_whole(np.arange(len(block.paragraph))))
        reach = max(16, len(lengths) // 200)
        b = block.count_tokens(these.b)
        shorter, longer = np.minimum(b, b[:, :1]), np.maximum(b, b[:, :1])
        between = np.zeros_like(b)
        for row, document in enumerate(block.document[these.a.paragraph[:, 0]]):
            others = np.sort(lengths[block.document != document])
            between[row] = np.searchsorted(others, longer[row], "left") - np.searchsorted(others, shorter[row], "right")
        assert between.max() <= 2 * reach  # where there are none on one side, there are more on the other
        assert np.mean(between <= reach) > 0.9


@pytest.mark.parametrize(
    ("anchor", "b", "window"), [(0, 21, range(5, 39)), (1, 1, range(2, 36)), (38, 40, range(6, 40))]
)
def test_each_of_the_nearest_of_other_documents_is_as_likely(tools, anchor, b, window):
    """As many wherever the positive's B stands in the order by length: 33, the document's own not counted."""
    shards = [[[[k] * (d + 1 + 20 * k) for k in range(2)] for d in range(20)]]  # of lengths 1 .. 40, one each
    these = tools.sampled("psd", shards, repeat=3000)
    lengths = these.block.count_tokens(these.b)
    rows = these.a.paragraph[:, 0] == anchor
    assert (lengths[rows, 0] == b).all()
    drawn = Counter(lengths[rows, 1:].ravel().tolist())
    likely = set(window) - {b, b - 20, b + 20}
    assert len(likely) == 33
    assert set(drawn) == likely
    tools.as_likely((drawn[n] for n in likely), [1] * len(likely))


@pytest.mark.parametrize("sampling", ["matched", "paper"])
def test_documents_of_one_paragraph_give_negatives_and_no_anchors(tools, sampling):
    lonely = [[[900 + d] * 2] for d in range(10)]
    shards = [[[[3 * d], [3 * d + 1, 3 * d + 2]] for d in range(10)] + lonely]
    these = tools.sampled("psd", shards, repeat=600, sampling=sampling)
    tools.check("psd", [these], matched=sampling == "matched")
    assert these.a.paragraph.max() < 20
    rows = these.a.paragraph[:, 0] == 0
    drawn = Counter(these.b.paragraph[rows, 1:].ravel().tolist())
    tools.as_likely((drawn[p] for p in range(2, 30)), [1] * 28)
