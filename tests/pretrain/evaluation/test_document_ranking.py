"""Questions of held-out documents, and rankings of their sentences by an encoder that needs no weights."""

import numpy as np
import pytest

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.evaluation.document_ranking import find_questions, load_cross_encoder, mean_auc, rank_sentences


class Encoder:
    """Scores candidates by what it is told, or by its opposite."""

    def __init__(self, questions, sign=1):
        self.same = {(q.sentence, c): s for q in questions for c, s in zip(q.candidates, q.same_paragraph, strict=True)}
        self.sign = sign

    def predict(self, pairs):
        return np.array([self.sign * float(self.same[pair]) for pair in pairs])

    def rank(self, sentence, candidates):
        scores = self.predict([(sentence, candidate) for candidate in candidates])
        return [{"corpus_id": int(n), "score": scores[n]} for n in np.argsort(-scores, kind="stable")]


@pytest.fixture(scope="module")
def questions(tiny_corpus):
    corpus = Corpus(str(tiny_corpus))
    return find_questions(corpus, load_tokenizer(str(corpus.folder / "tokenizer")))


def test_a_question_is_a_sentence_and_the_others_of_its_document(questions, tiny_documents):
    assert questions
    by_title = {document["title"]: document for document in tiny_documents}
    for question in questions:
        paragraphs = [p.lower() for p in by_title[question.title]["paragraphs"]]
        (home,) = (p for p in paragraphs if question.sentence in p)
        assert 10 <= len(question.candidates) + 1 <= 60
        for candidate, same in zip(question.candidates, question.same_paragraph, strict=True):
            assert any(candidate in p for p in paragraphs)
            assert not same or candidate in home
        assert 0 < sum(question.same_paragraph) < len(question.candidates)


def test_the_paragraphs_own_sentences_come_first_where_the_encoder_knows(questions):
    knows = Encoder(questions)
    ranked = rank_sentences(knows, questions[0])
    own = sum(questions[0].same_paragraph)
    assert [same for _, same, _ in ranked] == [True] * own + [False] * (len(ranked) - own)
    assert sorted(text for _, _, text in ranked) == sorted(questions[0].candidates)
    assert mean_auc(knows, questions) == 1
    assert mean_auc(Encoder(questions, sign=-1), questions) == 0


def test_what_is_no_model_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(KinspanError, match=r"--model .* cannot be loaded") as error:
        load_cross_encoder(str(tmp_path))
    assert "\n" not in str(error.value)
