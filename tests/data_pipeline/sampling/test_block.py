import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.anchors import open_block
from data_pipeline.sampling.block import ClassIndex, find_usable
from objectives import OBJECTIVES

SSP = OBJECTIVES["ssp"]


@pytest.fixture(scope="module")
def corpus(any_corpus):
    return Corpus(any_corpus)


def block_of(corpus, split="train", shards=None):
    return open_block(corpus, shards or tuple(range(len(corpus.manifest.shards))), split, SSP)


def nested(corpus, number):
    """The shard's ids as Python lists, read by pyarrow alone."""
    rows = corpus.shard(number).rows
    return tuple(rows.column(name).to_pylist() for name in ("id", "held_out", "tokens"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_holds_the_paragraphs_of_the_split_and_says_which_are_usable(corpus, split):
    expected = []
    for number in range(len(corpus.manifest.shards)):
        for held_out, document in zip(*nested(corpus, number)[1:], strict=True):
            counts = [len(p) for p in document]
            if held_out == (split == "validation") and counts:
                expected.append(counts)
    block = block_of(corpus, split)
    assert block.num_sentences.tolist() == [c for counts in expected for c in counts]
    assert np.diff(block.document_first).tolist() == [len(counts) for counts in expected]
    assert block.document.tolist() == [k for k, counts in enumerate(expected) for _ in counts]
    assert block.anchors.tolist() == np.flatnonzero(block.num_sentences >= 2).tolist()
    assert len(block.anchors) < len(block.paragraph)


def test_a_paragraph_of_no_tokens_is_none(make_corpus):
    text = ["A river.", "\u0301 \u0301", "A stone."]
    opened = Corpus(make_corpus([text] * 4, min_paragraph_chars=0, min_document_chars=0))
    psd = OBJECTIVES["psd"]
    block = open_block(opened, (0,), "train", psd)
    assert len(block.anchors) == len(find_usable(opened.shard(0), "train", psd.usable)[0]) == 8


@given(st.lists(st.integers(2, 9), min_size=1, max_size=40), st.integers(0, 6))
def test_long_enough_ranks_the_paragraphs_of_each_count(sentences, most):
    ranked = ClassIndex(np.array(sentences, dtype=np.int32) >= np.arange(most + 1)[:, None])
    for count in range(most + 1):
        expected = [k for k, n in enumerate(sentences) if n >= count]
        first, total = ranked.first[count], ranked.total[count]
        assert ranked.paragraphs[first : first + total].tolist() == expected
        before = [sum(e < k for e in expected) for k in range(len(sentences) + 1)]
        assert ranked.before[count].tolist() == before
