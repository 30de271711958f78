"""SP, and ICT, which is SP with an A of one sentence: pairs of both are as defined."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data_pipeline.prepare.encode import Rules, normalise, split_sentences
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE


def paragraphs_of(counts, first=0):
    """Paragraphs of so many sentences, no two sentences alike."""
    bounds = np.cumsum([first, *counts]).tolist()
    return [list(range(a, b)) for a, b in pairwise(bounds)]


COUNTS = [2, 2, 3, 4, 6, 7]
EVEN = [[paragraphs_of(COUNTS, 24 * d) for d in range(10)]]  # ten documents alike, in one shard


@pytest.fixture(scope="module")
def even(tools):
    return tools.sampled("sp", EVEN, repeat=1500)


@pytest.mark.parametrize("sampling", ["matched", "paper"])
@pytest.mark.parametrize("block_anchors", [60, 10**6])
def test_pairs_are_as_defined(any_corpus, make_stream, tools, sampling, block_anchors):
    stream = make_stream(any_corpus, objective="sp", sampling=sampling, block_anchors=block_anchors)
    count = min(stream.epoch_pairs, 3000)
    for first in (0, stream.epoch_pairs):
        kinds = tools.check_stream(stream, first, count, matched=sampling == "matched")
        assert kinds[POSITIVE] == count // 5
        assert kinds[HARD] > 0.8 * 2 * count / 5  # a few documents have one usable paragraph


def sentences_in_source(document, number, tokenizer):
    kept = [normalise(p) for p in document["paragraphs"]]
    kept = [p for p in kept if len(p) >= Rules().min_paragraph_chars]
    encoded = [tokenizer(s, add_special_tokens=False)["input_ids"] for s in split_sentences(kept[number])]
    return [ids for ids in encoded if ids]


def test_b_is_the_documents_paragraph_without_some_of_its_sentences(
    any_corpus, documents_of, make_stream, tools, helpers
):
    """The positive's without A: read from the source documents, not from the corpus."""
    tokenizer, documents = helpers.tokenizer(any_corpus / "tokenizer"), documents_of(any_corpus)
    for these in tools.groups(make_stream(any_corpus, objective="sp"), 0, 500):
        for row, slot in np.ndindex(these.kinds.shape):
            a, b = these.a[row, slot], these.b[row, slot]
            shard, k, number = these.block.locate(int(b.paragraph))
            own = sentences_in_source(documents[shard.document_id(k)], number, tokenizer)
            removed = own[b.hole_start : b.hole_end]
            kept = own[: b.hole_start] + own[b.hole_end :]
            assert removed
            assert these.block.read_tokens(b).tolist() == [t for s in kept for t in s]
            if slot == 0:
                assert these.block.read_tokens(a).tolist() == [t for s in removed for t in s]


def test_nothing_of_a_is_left_in_the_positives_b(even, tools):
    a, b = (tools.texts(even.block, spans[:5000, 0]) for spans in (even.a, even.b))
    for left, rest in zip(a, b, strict=True):
        left, rest = (set(np.frombuffer(x, dtype=np.int64).tolist()) for x in (left, rest))
        assert rest
        assert not left & rest


def test_a_has_one_to_three_sentences_as_often_as_the_paragraph_allows(even, tools):
    size = (even.a.end - even.a.start)[:, 0]
    sentences = even.block.num_sentences[even.a.paragraph[:, 0]]
    for count, most in ((3, 2), (4, 3), (6, 3), (7, 3)):
        found = Counter(size[sentences == count].tolist())
        tools.as_likely((found[k + 1] for k in range(most)), [1] * most)
        assert sum(found.values()) == (sentences == count).sum()


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
    own = even.block.document[even.a.paragraph[:, 0]]
    outside = [p for p in range(60) if p // 6 != 4]
    for s in (1, 2, 3):
        rows = (size == s) & (own == 4)
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


def test_positives_and_easy_negatives_are_cut_from_paragraphs_alike(even, tools):
    """For each length of A: what the weights are for. Drawn freely, they are not."""
    for sampling in ("matched", "paper"):
        these = even if sampling == "matched" else tools.sampled("sp", EVEN, repeat=1500, sampling=sampling)
        size, sentences = (these.a.end - these.a.start)[:, 0], these.b.end
        apart = 0.0
        for s in (1, 2, 3):
            rows = size == s
            easy = sentences[rows][these.kinds[rows] == EASY]
            apart = max(apart, abs(easy.mean() - sentences[rows, 0].mean()))
        assert (apart < 0.1) == (sampling == "matched")


def test_freely_drawn_negatives_lose_one_to_three_sentences_whatever_a_has(tools):
    these = tools.sampled("sp", EVEN, repeat=300, sampling="paper")
    size, removed = these.a.end - these.a.start, these.b.hole_end - these.b.hole_start
    long = (these.b.end >= 4) & (these.kinds != POSITIVE)
    for s in (1, 2, 3):
        found = Counter(removed[long & (size == s)].tolist())
        tools.as_likely((found[k] for k in (1, 2, 3)), [1, 1, 1])


def test_a_is_no_longer_than_what_another_paragraph_of_the_document_can_lose(tools):
    """Else the document's hard negatives would be given up."""
    documents = [paragraphs_of([9, 3], 20 * d) for d in range(6)]
    these = tools.sampled("sp", [documents], repeat=200)
    tools.check("sp", [these])
    size = (these.a.end - these.a.start)[:, 0]
    assert Counter(size[these.b.end[:, 0] == 9].tolist()).keys() == {1, 2}
    assert (these.kinds == HARD).sum(axis=1).tolist() == [1] * len(size)


def test_pairs_of_two_reads_are_the_same(any_corpus, make_stream, tools):
    one, other = (list(tools.groups(make_stream(any_corpus, objective="sp"), 5, 500)) for _ in range(2))
    for x, y in zip(one, other, strict=True):
        for name in ("paragraph", "start", "end", "hole_start", "hole_end"):
            assert np.array_equal(getattr(x.b, name), getattr(y.b, name))
