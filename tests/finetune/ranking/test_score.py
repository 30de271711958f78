"""Scores against the libraries whose models they are of."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from finetune.ranking.ranker import load_ranker, save_ranker
from finetune.ranking.score import is_bi_encoder, score_answers

# Length 24 cuts some of the pairs.
MAX_LENGTH = 24
OWN = {
    "bert": {},
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    "electra": {"embedding_size": 16},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "mpnet": {"max_position_embeddings": 514, "pad_token_id": 1},
}


@pytest.fixture(scope="module")
def data(write_sets, answer_set):
    return answer_set(write_sets(test=5, candidates=6), "test")


@pytest.fixture
def made(make_model, request):
    """A model whose scores differ from pair to pair: fresh heads are near zero."""

    def make(family="bert", **options):
        tokenizer = None
        if family == "roberta":
            tokenizer = load_tokenizer(str(request.getfixturevalue("shared") / "tokenizers/roberta-base-tokenizer"))
        return make_model(family, tokenizer=tokenizer, **{"initializer_range": 0.3} | OWN[family] | options)

    return make


def pairs_of(data):
    return [(data.questions[q], a) for q, a in zip(data.question_of, data.answers.to_pylist(), strict=True)]


def with_transformers(folder, data):
    """The logits of the model as transformers runs it, one pair at a time."""
    model = CrossEncoder(str(folder), max_length=MAX_LENGTH, device="cpu").model.eval()
    tokenizer = CrossEncoder(str(folder)).tokenizer
    out = []
    for question, answer in pairs_of(data):
        inputs = tokenizer(question, answer, truncation="longest_first", max_length=MAX_LENGTH, return_tensors="pt")
        with torch.no_grad():
            out.append(model(**inputs).logits[0])
    return torch.stack(out).double().numpy()


@pytest.mark.parametrize("family", OWN)
def test_equal_to_the_models_own_forward(family, made, data):
    options = {"classifier_pooling": "cls"} if family == "modernbert" else {}
    folder = made(family, **options)
    expected = with_transformers(folder, data)[:, 0]
    scores = score_answers(str(folder), data, MAX_LENGTH)
    assert scores.std() > 1e-3
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_equal_to_cross_encoder(made, data):
    folder = made("bert")
    theirs = CrossEncoder(str(folder), max_length=MAX_LENGTH, device="cpu")
    expected = theirs.predict(pairs_of(data), activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(score_answers(str(folder), data, MAX_LENGTH), expected, atol=1e-5)


def test_the_batch_does_not_matter(made, data):
    folder = str(made())
    alone = score_answers(folder, data, MAX_LENGTH, batch_tokens=1)
    np.testing.assert_allclose(score_answers(folder, data, MAX_LENGTH), alone, atol=1e-5)


def test_a_classifier_of_two_labels(made, data):
    folder = made("bert", num_labels=2)
    logits = with_transformers(folder, data)
    np.testing.assert_allclose(score_answers(str(folder), data, MAX_LENGTH), logits[:, 1] - logits[:, 0], atol=1e-5)


def test_a_bi_encoder_by_cosine(make_model, data, tmp_path):
    encoder = make_model(headless=True, initializer_range=0.3)
    words = Transformer(str(encoder), max_seq_length=MAX_LENGTH)
    SentenceTransformer(modules=[words, Pooling(32)], device="cpu").save(str(tmp_path / "bi"))
    theirs = SentenceTransformer(str(tmp_path / "bi"), device="cpu")
    asked, told = theirs.encode([q for q, _ in pairs_of(data)]), theirs.encode([a for _, a in pairs_of(data)])
    expected = (asked * told).sum(1) / np.linalg.norm(asked, axis=1) / np.linalg.norm(told, axis=1)
    assert is_bi_encoder(str(tmp_path / "bi"))
    np.testing.assert_allclose(score_answers(str(tmp_path / "bi"), data, MAX_LENGTH), expected, atol=1e-5)


def test_what_cannot_score(made, make_model, data):
    with pytest.raises(KinspanError, match="has 3 labels: give one of 1 or 2"):
        score_answers(str(made("bert", num_labels=3)), data)
    with pytest.raises(KinspanError, match="--max_length 64 is more than the 16 positions"):
        score_answers(str(made("bert", max_position_embeddings=16)), data, 64)
    with pytest.raises(KinspanError, match="no model at nowhere/at-all"):
        score_answers("nowhere/at-all", data)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_two_labels_fine_tune_and_save_as_one_logit(family, made, data, tmp_path):
    folder = made(family, num_labels=2)
    ranker, notes = load_ranker(str(folder))
    assert notes == ["the two labels of the head are folded into one logit: label 1 less label 0"]
    save_ranker(ranker.classifier.config, load_tokenizer(str(folder)), ranker.state_dict(), tmp_path / "one")
    expected = score_answers(str(folder), data, MAX_LENGTH)
    np.testing.assert_allclose(score_answers(str(tmp_path / "one"), data, MAX_LENGTH), expected, atol=1e-5)
