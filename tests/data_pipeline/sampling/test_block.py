from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus import Corpus
from data_pipeline.sampling import anchors
from data_pipeline.sampling.anchors import get_usable_counts, open_block
from data_pipeline.sampling.block import ClassIndex, Spans
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


def test_tokens_and_place_of_a_span_are_those_in_the_shard(corpus):
    block = block_of(corpus)
    rng = np.random.default_rng(0)
    for paragraph in rng.integers(len(block.paragraph), size=40).tolist():
        shard, row, number = block.locate(paragraph)
        sentences = shard.rows.column("tokens")[row].as_py()[number]
        assert len(sentences) == block.num_sentences[paragraph]
        start = int(rng.integers(len(sentences)))
        end = int(rng.integers(start + 1, len(sentences) + 1))
        expected = [t for s in sentences[start:end] for t in s]
        assert block.read_tokens(Spans(*map(np.asarray, (paragraph, start, end)))).tolist() == expected


@given(st.lists(st.integers(2, 9), min_size=1, max_size=40), st.integers(0, 6))
def test_long_enough_ranks_the_paragraphs_of_each_count(sentences, most):
    ranked = ClassIndex.of(np.array(sentences, dtype=np.int32) >= np.arange(most + 1)[:, None])
    for count in range(most + 1):
        expected = [k for k, n in enumerate(sentences) if n >= count]
        first, total = ranked.first[count], ranked.total[count]
        assert ranked.paragraphs[first : first + total].tolist() == expected
        before = [sum(e < k for e in expected) for k in range(len(sentences) + 1)]
        assert ranked.before[count].tolist() == before


# Spans with holes -----------------------------------------------------------------------------------------


def holes_of(block, seed, count=60):
    """Whole paragraphs without some of their sentences: at the start, at the end or between."""
    rng = np.random.default_rng(seed)
    paragraphs = rng.permutation(block.anchors)[:count]
    sentences = block.num_sentences[paragraphs].astype(np.int64)
    start = rng.integers(0, sentences)
    end = start + rng.integers(1, np.minimum(sentences - start, sentences - 1) + 1)
    return Spans(paragraphs, np.zeros_like(sentences), sentences, start, end)


def test_tokens_of_a_span_with_a_hole_are_those_of_its_sentences(corpus):
    block = block_of(corpus)
    spans = holes_of(block, 0)
    lengths = block.count_tokens(spans)
    for k in range(len(spans.paragraph)):
        shard, row, number = block.locate(spans.paragraph[k])
        sentences = shard.rows.column("tokens")[row].as_py()[number]
        kept = sentences[: spans.hole_start[k]] + sentences[spans.hole_end[k] :]
        assert block.read_tokens(spans[k]).tolist() == [t for s in kept for t in s]
        assert lengths[k] == sum(map(len, kept)) > 0
    assert 0 in spans.hole_start
    assert (spans.hole_end == spans.end).any()
    assert ((spans.hole_start > 0) & (spans.hole_end < spans.end)).any()


def test_an_objective_that_the_manifest_does_not_know_counts_each_shard_once(tiny_corpus, monkeypatch):
    """Whatever the split: training and validation are set up one after the other."""
    counted, corpus = [], Corpus(tiny_corpus)
    unknown = replace(SSP, name="my_module:MINE")
    count = anchors.count_usable
    monkeypatch.setattr(anchors, "count_usable", lambda *given: counted.append(given[0]) or count(*given))
    for split in ("train", "validation", "train"):
        assert get_usable_counts(corpus, unknown, split) == get_usable_counts(corpus, SSP, split)
    assert len(counted) == len({id(shard) for shard in counted}) == len(corpus.manifest.shards)
