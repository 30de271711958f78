import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.cleaning import Rules, normalise, split_sentences
from data_pipeline.sampling.batch import Batch, concatenate
from data_pipeline.sampling.pairs import POSITIVE
from objectives.rtd import mask_for_generator
from pretrain.batches import make_micro_batches
from pretrain.engine.layout import Layout
from tests.cases import assert_equal


def rows_of(stream, first, count):
    """``(PairRows, row)`` of each example."""
    return [(rows, k) for rows in stream.pairs(first, count) for k in range(len(rows.index))]


def place(rows, spans, k):
    """A span's document id, paragraph, first and last sentence, and, where it has a hole, those of the hole."""
    shard, row, number = rows.block.locate(int(spans.paragraph[k]))
    ends = (spans.start, spans.end, spans.hole_start, spans.hole_end)
    return shard.document_id(row), number, *(int(x[k]) for x in ends if x is not None)


# Ids ------------------------------------------------------------------------------------------------------


def text_of(where, documents, tokenizer):
    """A span's sentences, from the source document, joined by one space."""
    name, number, start, end, *hole = where
    hole_start, hole_end = hole or (end, end)
    kept = [normalise(p) for p in documents[name]["paragraphs"]]
    kept = [p for p in kept if len(p) >= Rules().min_paragraph_chars]
    with_ids = [s for s in split_sentences(kept[number]) if tokenizer(s, add_special_tokens=False)["input_ids"]]
    return " ".join(with_ids[start:hole_start] + with_ids[hole_end:end])


@pytest.mark.parametrize("max_length", [256, 40, 33, 17])
@pytest.mark.parametrize("objective", ["ssp", "sp"])
def test_ids_are_those_that_the_tokenizer_gives_the_text(
    any_corpus, documents_of, make_stream, helpers, objective, max_length
):
    """Whole or cut; a text of sp has a hole, and is cut in either of its runs, or between them."""
    tokenizer, documents = helpers.tokenizer(any_corpus / "tokenizer"), documents_of(any_corpus)
    stream = make_stream(any_corpus, objective=objective, max_length=max_length)
    for first in (3, stream.epoch_pairs // 2):
        batch = stream.batch(first, 120)
        for k, (rows, row) in enumerate(rows_of(stream, first, 120)):
            a, b = (text_of(place(rows, s, row), documents, tokenizer) for s in rows.texts)
            options = {"truncation": "longest_first", "max_length": max_length, "return_token_type_ids": True}
            expected = tokenizer(a, b, split_special_tokens=True, **options)
            of_pair = slice(batch.starts[k], batch.starts[k + 1])
            assert batch.input_ids[of_pair].tolist() == expected["input_ids"]
            assert batch.token_type_ids[of_pair].tolist() == expected["token_type_ids"]
        assert max_length == 256 or batch.lengths.max() == max_length
        assert max_length < 40 or batch.lengths.min() < max_length


@pytest.mark.parametrize("tokenizer", [None, "bert-uncased_electra-small", "roberta-base-tokenizer"])
def test_text_that_names_special_tokens_stays_text(tokenizer, make_corpus, make_stream, helpers, request):
    if tokenizer:
        tokenizer = request.getfixturevalue("shared") / "tokenizers" / tokenizer
    sentences = ["The token [SEP] ends it.", "Then </s> and <s> follow.", "Here <mask> or [MASK] hides it."]
    sentences += ["And [PAD]<pad> or [CLS] pads it.", "So <unk> is not [UNK] at all."]
    documents = [[" ".join(sentences[k:] + sentences[:k]), f"Number {k}. " + " ".join(sentences)] for k in range(5)]
    corpus = make_corpus(documents, tokenizer)
    loaded = helpers.tokenizer(corpus / "tokenizer")
    stream = make_stream(corpus)
    batch = stream.batch(0, 500)
    special = np.isin(batch.input_ids, loaded.all_special_ids)
    assert special.sum() == 500 * stream.template.num_special
    text = loaded.decode(batch.input_ids[~special], clean_up_tokenization_spaces=False).lower().replace(" ", "")
    for word in ("[sep]", "</s>", "<mask>", "[mask]", "[pad]<pad>", "[cls]", "<unk>", "[unk]"):
        assert word in text


# Order ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked(tiny_corpus, make_stream):
    """Small blocks, so that ranges cross them."""
    return make_stream(tiny_corpus, seed=3, masking=True, block_anchors=60)


@pytest.fixture(scope="module")
def replaced(tiny_corpus, make_stream):
    return make_stream(tiny_corpus, seed=3, masking=mask_for_generator(103, 30522), block_anchors=60)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [64, 37, 5])
def test_ranks_together_read_the_same_global_batch(any_corpus, make_stream, world, size):
    """Whatever the number of ranks; a rank may have nothing to do."""
    stream = make_stream(any_corpus, masking=True, block_anchors=500)
    layout = Layout(size, 6, world)
    for step in (0, stream.epoch_pairs // size):
        parts = [batch for rank in range(world) for batch in make_micro_batches(stream, layout, rank, step) if batch]
        assert_equal(concatenate(parts), stream.batch(step * size, size))


@pytest.mark.parametrize("max_length", [24, 128])
@pytest.mark.parametrize("size", [17, 4096])
def test_tokens_are_counted_without_being_read(max_length, size, any_corpus, make_stream, monkeypatch):
    stream = make_stream(any_corpus, objective="ssp+sp", masking=True, max_length=max_length)
    monkeypatch.setattr("data_pipeline.sampling.stream.CHUNK", size)
    assert stream.count_tokens(7, 100).tolist() == stream.batch(7, 100).lengths.tolist()


@pytest.mark.parametrize("noise", [False, True])
@given(st.integers(0, 5000), st.integers(0, 30), st.integers(1, 30), st.integers(0, 30))
def test_a_part_of_a_batch_is_the_batch_of_that_part(masked, replaced, noise, first, before, count, after):
    stream = replaced if noise else masked
    whole = stream.batch(first, before + count + after)
    assert_equal(whole.cut(before, before + count), stream.batch(first + before, count))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_size_of_chunks_changes_nothing(masked, monkeypatch, size):
    whole = masked.batch(13, 200)
    monkeypatch.setattr("data_pipeline.sampling.stream.CHUNK", size)
    assert_equal(masked.batch(13, 200), whole)


@pytest.mark.parametrize("position", [10**6 * 64, 10**9 + 7, 10**12])
def test_far_ahead_is_read_at_once_and_as_from_anywhere(tiny_corpus, make_stream, masked, position):
    began = time.monotonic()
    far = make_stream(tiny_corpus, seed=3, masking=True, block_anchors=60).batch(position, 64)
    assert time.monotonic() - began < 2
    around = masked.batch(position - 33, 200)
    assert np.array_equal(around.index[33:97], far.index)
    start, end = around.starts[33], around.starts[97]
    assert np.array_equal(around.input_ids[start:end], far.input_ids)
    inside = (around.masked_positions >= start) & (around.masked_positions < end)
    assert np.array_equal(around.masked_positions[inside] - start, far.masked_positions)


# Blocks and splits ----------------------------------------------------------------------------------------


def test_the_two_splits_share_no_document(any_corpus, make_stream):
    seen = {}
    for split in ("train", "validation"):
        stream = make_stream(any_corpus, split=split)
        count = min(stream.epoch_pairs, 3000)
        seen[split] = {place(rows, spans, k)[0] for rows, k in rows_of(stream, 0, count) for spans in rows.texts}
    assert min(map(len, seen.values())) >= 2
    assert not seen["train"] & seen["validation"]


# Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [0, 14])
def test_too_short_a_maximum_is_an_error(tiny_corpus, make_stream, max_length):
    with pytest.raises(KinspanError, match=f"--max_length {max_length}"):
        make_stream(tiny_corpus, max_length=max_length)
    assert np.diff(make_stream(tiny_corpus, max_length=15).batch(0, 100).starts).max() == 15


def test_an_empty_split_is_an_error(make_corpus, make_stream, helpers):
    corpus = make_corpus(helpers.synthetic_documents(3), validation_share=0.0)
    with pytest.raises(KinspanError, match=str(corpus)):
        make_stream(corpus, split="validation")


# Permuted labels ------------------------------------------------------------------------------------------


def test_permuted_labels_say_nothing_and_change_nothing_else(tiny_corpus, make_stream):
    plain, permuted = (make_stream(tiny_corpus, objective="ssp+nsp", permute_labels=p) for p in (False, True))
    before, after = plain.batch(0, 1000), permuted.batch(0, 1000)
    for name in set(Batch.__dataclass_fields__) - {"labels"}:
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    for part, group in ((0, 5), (1, 2)):
        kinds, labels = after.kinds[after.part == part], after.labels[after.part == part]
        assert (labels.reshape(-1, group).sum(axis=1) == 1).all()
        assert abs(labels[kinds == POSITIVE].mean() - 1 / group) < 0.1  # a positive is called so as often as any pair
    assert_equal(concatenate([permuted.batch(0, 333), permuted.batch(333, 667)]), after)
    assert not np.array_equal(after.labels, make_stream(tiny_corpus, seed=2, permute_labels=True).batch(0, 1000).labels)
