import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.anchors import open_block
from data_pipeline.sampling.block import ClassIndex, find_usable
from objectives import OBJECTIVES


@pytest.fixture(scope="module")
def corpus(any_corpus):
    return Corpus(any_corpus)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_holds_the_paragraphs_of_the_split_and_says_which_are_usable(corpus, split):
    expected, shards = [], tuple(range(len(corpus.manifest.shards)))
    for number in shards:
        columns = (corpus.shard(number).rows.column(name).to_pylist() for name in ("held_out", "tokens"))
        for held_out, document in zip(*columns, strict=True):
            counts = [len(p) for p in document]
            if held_out == (split == "validation") and counts:
                expected.append(counts)
    block = open_block(corpus, shards, split, OBJECTIVES["ssp"])
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
