from contextlib import nullcontext
from pathlib import Path

import pytest

from data_pipeline.browse import check_left_out, decode_pairs, format_document, load_decoder, sample_documents
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from tests.synthetic import short_tokenizer


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


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("HE SAID: we don't know how many café tables were sold in São Paulo", True),
        ("We don't know how many café tables were sold", False),  # a part, for the n-grams
        ("Sans café?", True),
        ("café", False),
        ("\u0bf5 \u0bf5", False),  # unknown to the tokenizer
    ],
)
def test_a_text_that_was_to_be_left_out_is_refused(text, stands, tmp_path, helpers):
    first = 'He said: "We don\'t know how many café tables were sold in São Paulo."'
    lines = [{"id": "t1", "title": "?", "paragraphs": [first], "answers": ["No.", "sans CAFE"]}]
    lines += [{"id": f"t{n}", "title": "?", "text": f"Case {n} \u0bf5"} for n in range(2, 9)]
    source = f"questions:{helpers.write_jsonl(tmp_path / 'desk.jsonl', lines)}"
    helpers.prepare([source], short_tokenizer(), tmp_path / "corpus")
    with pytest.raises(KinspanError, match="--questions") if stands else nullcontext():
        check_left_out(["Nothing.", text], Corpus(tmp_path / "corpus"), "--questions")
