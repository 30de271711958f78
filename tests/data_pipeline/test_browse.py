from pathlib import Path

import pytest

from data_pipeline.browse import decode_pairs, format_document, load_decoder, sample_documents
from data_pipeline.corpus import Corpus


@pytest.fixture(scope="module")
def corpus(tiny_corpus):
    return Corpus(tiny_corpus)


def test_a_document_reads_as_it_was_written(corpus, tiny_documents):
    decoder = load_decoder(Path(corpus.tokenizer_folder))
    wanted = {document["id"]: document for document in tiny_documents}
    for shard, row in sample_documents(corpus, 5, 1):
        document = wanted[shard.document_id(row)]
        head, *paragraphs = format_document(shard, row, decoder).split("\n\n")
        assert head.splitlines()[1] == document["title"]
        assert [" ".join(p.split()) for p in paragraphs] == [p.lower() for p in document["paragraphs"]]


def test_a_sample_is_of_all_shards_and_the_same_for_a_seed(corpus):
    drawn = [[shard.document_id(row) for shard, row in sample_documents(corpus, 2**63, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == len(set(drawn[0])) == 60, "each document once"


def test_pairs_are_shown_by_what_stands_in_their_documents(make_stream, tiny_corpus, tiny_documents, helpers):
    stream = make_stream(tiny_corpus, objective="sp")
    pairs = list(decode_pairs(stream, helpers.tokenizer(tiny_corpus / "tokenizer"), 3, 12))
    assert [pair["index"] for pair in pairs] == list(range(3, 15))
    documents = {document["id"]: " ".join(document["paragraphs"]).lower() for document in tiny_documents}
    for pair in pairs:
        assert pair["label"] == (pair["kind"] == "positive")
        assert pair["a"] in documents[pair["doc_id"]]
        if "without" not in pair["b_place"]:
            assert pair["b"] in documents[pair["b_doc_id"]]
