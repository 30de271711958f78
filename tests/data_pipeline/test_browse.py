import pytest

from data_pipeline.browse import find_document, load_decoder, sample_documents, search_documents, show_document
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus


@pytest.fixture(scope="module")
def opened(tiny_corpus):
    corpus = Corpus(tiny_corpus)
    return corpus, load_decoder(corpus.folder)


def test_a_document_is_found_by_its_id_and_reads_as_it_was_written(opened, tiny_documents):
    corpus, decoder = opened
    for wanted in tiny_documents[::20]:
        found = show_document(*find_document(corpus, wanted["id"]), decoder)
        assert (found.id, found.title) == (wanted["id"], wanted["title"])
        assert [" ".join(p.split()) for p in found.paragraphs] == [p.lower() for p in wanted["paragraphs"]]


def test_an_id_that_is_not_there_is_said_to_be_so(opened):
    with pytest.raises(KinspanError, match="--id nobody: no document"):
        find_document(opened[0], "nobody")


def test_a_sample_is_of_all_shards_and_the_same_for_a_seed(opened):
    corpus, decoder = opened
    drawn = [
        [show_document(*place, decoder).id for place in sample_documents(corpus, 2**63, seed)] for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 60, "as many as there are"
    assert len(set(drawn[0])) > 0.8 * 60 * (1 - (1 - 1 / 60) ** 60)


def test_a_search_finds_what_stands_in_a_document_in_any_case(opened, tiny_documents):
    corpus, decoder = opened
    text = " ".join(tiny_documents[7]["paragraphs"][1].split()[2:9])
    found = [show_document(*place, decoder).id for place in search_documents(corpus, text.upper(), decoder)]
    assert found == [tiny_documents[7]["id"]]
    assert not list(search_documents(corpus, "zyxwv not there", decoder))
    for nothing in ("", "\u200b"):
        with pytest.raises(KinspanError, match="leaves nothing of this text"):
            list(search_documents(corpus, nothing, decoder))
