"""Small corpora that make sampling hard: each objective gives pairs as defined, or an error of one line."""

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.order import TooFewDocuments
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE

ALL = {"min_paragraph_chars": 1, "min_document_chars": 1}  # keeps every paragraph, however short
NAMES = ["ssp", "sp", "ict", "psd", "nsp", "sop"]
SAME = "Same text. " * 3


def sentences(*numbers):
    return " ".join(f"This is sentence w{n} of the text." for n in numbers)


CASES = [(name, "matched") for name in NAMES] + [(name, "paper") for name in ("ssp", "sp", "psd")]
LEAST_HARD = {"ssp": 0.36, "sp": 0.32, "ict": 0.32, "psd": 0, "nsp": 0, "sop": 0.5}  # share of the pairs


@pytest.mark.parametrize("block_anchors", [60, 10**6])
@pytest.mark.parametrize(("name", "sampling"), CASES)
def test_pairs_of_any_corpus_are_as_defined(any_corpus, make_stream, tools, name, sampling, block_anchors):
    stream = make_stream(any_corpus, objective=name, sampling=sampling, block_anchors=block_anchors)
    group = stream.mixture.objectives[0].pairs_per_anchor
    count = min(stream.epoch_pairs, 3000)
    matched = {"matched": sampling == "matched"} if name in ("ssp", "sp", "psd") else {}
    for first in (0, stream.epoch_pairs):
        kinds = tools.check_stream(stream, first, count, **matched)
        assert kinds[POSITIVE] == count // group
        assert kinds[HARD] >= LEAST_HARD[name] * count
        assert sum(kinds.values()) == count


@pytest.mark.parametrize("name", ["ssp", "sp", "ict", "psd", "nsp"])
def test_a_corpus_that_is_all_one_text_is_an_error_and_no_loop(name, make_corpus, make_stream):
    stream = make_stream(make_corpus([[SAME] * 3 for _ in range(100)], **ALL), objective=name)
    began = time.monotonic()
    with pytest.raises(KinspanError, match="document d"):
        stream.batch(0, 500)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("name", ["ssp", "sp", "ict", "psd", "nsp"])
def test_a_book_beside_notes_has_all_notes_for_negatives_at_the_first_draw(name, tools):
    """The book's texts are skipped and not drawn again, and the notes are drawn evenly."""
    rng, token = np.random.default_rng(0), iter(range(10**6))
    book = [[next(token) for _ in range(rng.integers(2, 9))] for _ in range(2000)]
    notes = [[[next(token) for _ in range(6)] for _ in range(2)] for _ in range(20)]
    these = tools.sampled(name, [[book, *notes]], repeat=2)
    easy = (these.kinds == EASY) & (these.block.document[these.a.paragraph] == 0)
    drawn = Counter(these.b.paragraph[easy].tolist())
    assert drawn.keys() == set(range(2000, 2040))
    if name == "psd":  # which draws among the 33 that are nearest in length
        assert max(drawn.values()) < 2 * sum(drawn.values()) / 40
    else:
        tools.as_likely(drawn.values(), [1] * 40)


@pytest.mark.parametrize("name", ["ssp", "sp", "ict", "nsp", "sop"])
def test_a_huge_paragraph_is_sampled_all_over(name, make_corpus, make_stream, tools):
    small = [[sentences(*range(4000 + 9 * d, 4009 + 9 * d))] for d in range(3)]
    stream = make_stream(make_corpus([[sentences(*range(3000))], *small], **ALL), objective=name)
    tools.check_stream(stream, count=2000)
    starts = []
    for these in tools.groups(stream, 0, 2000):
        starts += these.a.start[these.block.num_sentences[these.a.paragraph[:, 0]] > 9, 0].tolist()
    assert min(starts) < 300
    assert max(starts) > 2700


@pytest.mark.parametrize(
    "documents",
    [
        [[sentences(*range(5 * p, 5 * p + 5)) for p in range(10)]],
        [[sentences(1, 2, 3), sentences(4, 5)], ["One sentence alone."]],
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_one_usable_document_is_an_error(name, documents, make_corpus, make_stream):
    with pytest.raises(TooFewDocuments, match=name):
        make_stream(make_corpus(documents, **ALL), objective=name)


# Any block ------------------------------------------------------------------------------------------------

PARAGRAPH = st.lists(st.integers(0, 4), min_size=1, max_size=8)  # few sentences, so that texts repeat
DOCUMENT = st.lists(PARAGRAPH, min_size=1, max_size=4)
SHARDS = st.lists(st.lists(DOCUMENT, min_size=1, max_size=3), min_size=1, max_size=3)


def runs(paragraph, size):
    return [paragraph[k : k + size] for k in range(len(paragraph) - size + 1)]


def rests(paragraph, size):
    """All that is left of a paragraph without so many of its sentences, each way."""
    return [paragraph[:k] + paragraph[k + size :] for k in range(len(paragraph) - size + 1)]


def candidates(name, document):
    """The paragraphs that can be in a pair; to PSD one alone in its document can be a negative."""
    return document if name == "psd" else [p for p in document if len(p) >= 2]


def ssp_has_negatives(inside, outside):
    usable = [p for p in outside if len(p) >= 2]
    return all(len({tuple(r) for p in usable for r in runs(p, size)}) != 1 for size in range(1, 6))


def sp_has_negatives(inside, outside, matched, most=3):
    for p in inside:
        for size in range(1, min(len(p) - 1, most) + 1):
            if matched and not any(len(q) > size for q in outside):
                continue  # A keeps to what others can lose
            others = [q for q in outside if q != p and len(q) > (size if matched else 1)]
            left = [r for q in others for r in rests(q, min(size, len(q) - 1))]
            if not all(any(r != rest for r in left) for rest in rests(p, size)):
                return False
    return True


def psd_has_negatives(inside, outside):
    pairs = ((a, b) for k, a in enumerate(inside) for b in inside[:k] + inside[k + 1 :])
    return all(any(q not in pair for q in outside) for pair in pairs)


def nsp_has_negatives(inside, outside):
    for size in range(1, 6):
        texts = [r for q in outside for r in runs(q, size)]
        positives = [r for p in inside for r in runs(p[1:], size)]
        if texts and not all(any(t != r for t in texts) for r in positives):
            return False
    return True


def has_negatives(name, documents, matched):
    """Whether there is a negative for every positive that could be drawn of these documents."""
    for k, inside in enumerate(documents):
        if name == "psd" and len(inside) < 2:
            continue
        outside = [p for d in documents[:k] + documents[k + 1 :] for p in d]
        right = {
            "ssp": ssp_has_negatives,
            "sp": lambda inside, outside: sp_has_negatives(inside, outside, matched),
            "ict": lambda inside, outside: sp_has_negatives(inside, outside, matched, most=1),
            "psd": psd_has_negatives,
            "nsp": nsp_has_negatives,
            "sop": lambda inside, outside: any(x != y for p in inside + outside for x, y in pairwise(p)),
        }[name]
        if not right(inside, outside):
            return False
    return True


# 0 0 1 2 without its first sentence is 0 1 2, as is 0 1 0 2 without its third.
SAME_REST = [[[[0, 0, 1, 2]], [[0, 1, 0, 2], [0, 1, 2, 0]]]]


@settings(max_examples=60)
@example(shards=SAME_REST, seed=0)
@given(shards=SHARDS, seed=st.integers(0, 2**32))
@pytest.mark.parametrize(("name", "sampling"), CASES)
def test_any_block_gives_pairs_as_defined_or_a_named_error(tools, name, sampling, shards, seed):
    documents = [d for d in (candidates(name, d) for shard in shards for d in shard) if d]
    if not documents or (name == "psd" and all(len(d) < 2 for d in documents)):
        return  # PairStream does not go so far
    matched = {"matched": sampling == "matched"} if name in ("ssp", "sp", "ict", "psd") else {}
    try:
        these = tools.sampled(name, shards, seed, sampling=sampling)
    except KinspanError:
        assert len(documents) < 2 or not has_negatives(name, documents, sampling == "matched")
    else:
        assert len(documents) >= 2 or name in ("ssp", "sop")
        tools.check(name, [these], hard_where_possible=False, **matched)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=2, max_size=6), st.integers(0, 99))
@pytest.mark.parametrize("name", ["sp", "ict"])
def test_hard_negatives_are_as_many_as_any_document_allows(tools, name, counts, seed):
    """Where no two texts are equal: up to two, and one at least wherever there is another usable paragraph."""
    number = iter(range(10_000))
    documents = [[[next(number) for _ in range(n)] for n in document] for document in counts]
    if sum(any(n >= 2 for n in document) for document in counts) < 2:
        return
    these = tools.sampled(name, [documents], seed)
    tools.check(name, [these])
