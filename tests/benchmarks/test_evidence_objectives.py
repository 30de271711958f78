"""The controls for SSP in the evidence study: negatives of one kind, and titles for anchors."""

import numpy as np
import pytest

from benchmarks.evidence.objectives import SSP_EASY, SSP_HARD
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.pairs import EASY, HARD
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from tests.synthetic import short_tokenizer


@pytest.mark.parametrize(("objective", "other"), [(SSP_EASY, HARD), (SSP_HARD, EASY)], ids=["easy", "hard"])
def test_negatives_of_one_kind(objective, other, tiny_corpus):
    """Documents of four paragraphs or more: none of the other kind but where a document has too few that suit."""
    tokenizer = load_tokenizer(short_tokenizer())
    name = f"benchmarks.evidence.objectives:{'SSP_EASY' if objective is SSP_EASY else 'SSP_HARD'}"
    stream = PairStream(
        parse_mixture(name, "matched").read_from(Corpus(tiny_corpus)),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=64,
        masking=MaskedLM(tokenizer.mask_token_id, len(tokenizer), 0.15, None),
    )
    kinds = stream.batch(0, 500).kinds
    share = (kinds == other).mean()
    assert share == 0 if other == HARD else share < 0.25
    assert (kinds == 0).mean() == pytest.approx(0.2)


def test_titles_are_paired_with_first_sentences(make_corpus, tiny_documents):
    """The positive is the document's own first sentence, the negative another document's, and nothing follows."""
    corpus = Corpus(make_corpus(tiny_documents, title_texts=True))
    tokenizer = load_tokenizer(short_tokenizer())
    stream = PairStream(
        parse_mixture("benchmarks.evidence.objectives:TITLE_FIRST", "matched").read_from(corpus),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=128,
        masking=MaskedLM(tokenizer.mask_token_id, len(tokenizer), 1e-9, None),
    )
    batch = stream.batch(0, 20)
    documents = {words(doc["title"]): words(doc["paragraphs"][0].split(". ")[0]) for doc in tiny_documents}
    found = set()
    for ids, label in zip(np.split(batch.input_ids, batch.starts[1:-1]), batch.labels, strict=True):
        title, sentence, _ = tokenizer.decode(ids).removeprefix("[CLS]").split("[SEP]")
        assert (documents[words(title)] == words(sentence)) == bool(label)
        assert words(sentence) in documents.values()
        found.add(bool(label))
    assert found == {True, False}


def words(text):
    """Its words in lower case, as the tokenizer's decoder may space them otherwise."""
    return "".join(character for character in text.lower() if character.isalnum())
