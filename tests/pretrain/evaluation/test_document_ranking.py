"""Questions of held-out documents, and rankings of their sentences."""

from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.tokenizers import load_tokenizer
from launch.commands.rank_document import _show_figures
from pretrain.evaluation.document_ranking import (
    compute_aucs,
    find_questions,
    load_bi_encoder,
    load_release,
    rank_sentences,
)
from pretrain.modeling.default_model import default_model


def know(question):
    """Scores candidates by what they are."""
    return np.array(question.same_paragraph, dtype=float)


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


def test_the_paragraphs_own_sentences_come_first_where_they_are_known(questions):
    ranked = rank_sentences(know, questions[0])
    own = sum(questions[0].same_paragraph)
    assert [same for same, _ in ranked] == [True] * own + [False] * (len(ranked) - own)
    assert sorted(text for _, text in ranked) == sorted(questions[0].candidates)
    np.testing.assert_array_equal(compute_aucs(know, questions), np.ones(len(questions)))
    np.testing.assert_array_equal(compute_aucs(lambda q: -know(q), questions), np.zeros(len(questions)))
    np.testing.assert_array_equal(compute_aucs(lambda q: 0 * know(q), questions), np.full(len(questions), 0.5))


def test_a_bi_encoder_finds_a_sentence_in_itself(questions):
    asked = replace(questions[0], candidates=[questions[0].sentence, *questions[0].candidates])
    scores = load_bi_encoder(default_model())(asked)
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert (np.abs(scores) < 1 + 1e-5).all()
    assert (scores[1:] < 0.999).all()


def test_a_model_without_a_head_for_pairs_is_ranked_by_its_cosine(questions):
    """CrossEncoder would draw a head at random."""
    one, two = (load(default_model())(questions[0]) for load in (load_release, load_bi_encoder))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("better", ["release", "cosine", "neither"])
def test_the_closing_line_says_which_one_is_better(better, questions, capsys):
    scores = {"cosine": know, "release": know}
    if better != "neither":
        scores["cosine" if better == "release" else "release"] = lambda q: -know(q)
    _show_figures(scores, questions[:1] * 8)
    verdict = {"release": "the release ranks", "cosine": "the cosine of the start ranks", "neither": "no difference"}
    assert verdict[better] in capsys.readouterr().out.splitlines()[-1]


def test_what_is_no_model_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for load, flag in ((load_release, "--model"), (load_bi_encoder, "--start")):
        with pytest.raises(KinspanError, match=rf"{flag} .* cannot be loaded") as error:
            load(str(tmp_path))
        assert "\n" not in str(error.value)
