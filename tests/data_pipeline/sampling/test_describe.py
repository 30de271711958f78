"""Pairs as text: what is said of a span is what lies there."""

import pytest

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.describe import describe_pairs, format_pair
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture


@pytest.fixture(scope="module")
def pairs(tiny_corpus):
    tokenizer = load_tokenizer(str(tiny_corpus / "tokenizer"))
    stream = PairStream(
        parse_mixture("sp").read_from(Corpus(str(tiny_corpus))), template=read_pair_template(tokenizer), seed=1
    )
    return list(describe_pairs(stream, tokenizer, 3, 12))


def test_they_are_those_of_the_indices_and_their_texts_stand_in_the_documents(pairs, tiny_documents):
    assert [pair["index"] for pair in pairs] == list(range(3, 15))
    documents = {document["id"]: document["paragraphs"] for document in tiny_documents}
    for pair in pairs:
        assert pair["label"] == (pair["kind"] == "positive")
        assert pair["a"] in documents[pair["doc_id"]][pair["a_paragraph"]].lower()
        if pair["b_without"] is None:
            assert pair["b"] in documents[pair["b_doc_id"]][pair["b_paragraph"]].lower()


def test_as_text_it_says_where_both_spans_lie(pairs):
    for pair in pairs:
        head, a, text_a, b, text_b = format_pair(pair).splitlines()
        assert head.startswith(f"pair {pair['index']}: sp, {pair['kind']}, label {pair['label']}, ")
        assert a.startswith(f"  A: {pair['doc_id']} ({pair['titles'][0]}), paragraph {pair['a_paragraph']}, ")
        assert b.startswith(f"  B: {pair['b_doc_id']} ({pair['titles'][1]}), paragraph {pair['b_paragraph']}, ")
        assert b.endswith(")")
        assert ("without" in b) == (pair["b_without"] is not None)
        assert (text_a.strip(), text_b.strip()) == (pair["a"], pair["b"])
