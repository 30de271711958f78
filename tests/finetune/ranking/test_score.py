"""Scores against the libraries whose models they are of."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.embedder import Embedder
from finetune.ranking.ranker import find_trained_length, load_own_tokenizer, load_ranker, save_ranker
from finetune.ranking.score import score_answers
from finetune.ranking.siamese import describe_left_out, load_siamese_ranker, save_siamese_ranker

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


def test_a_precision_that_is_not_taken_is_said(made, bi_encoder, data):
    for folder in (made("bert", num_labels=2), bi_encoder()):
        said = []
        score_answers(str(folder), data, MAX_LENGTH, precision="bf16", say=said.append)
        assert any("is scored in fp32: bf16 is for" in line for line in said)


@pytest.fixture
def bi_encoder(make_model, tmp_path):
    """``bi_encoder(**options)``: a folder of sentence-transformers, with options of SentenceTransformer."""

    def make(name="bi", **options):
        encoder = make_model(headless=True, initializer_range=0.3)
        words = Transformer(str(encoder), max_seq_length=MAX_LENGTH)
        SentenceTransformer(modules=[words, Pooling(32)], device="cpu", **options).save(str(tmp_path / name))
        return tmp_path / name

    return make


def test_a_bi_encoder_by_cosine(bi_encoder, data):
    folder, said = str(bi_encoder()), []
    theirs = SentenceTransformer(folder, device="cpu")
    asked, told = theirs.encode([q for q, _ in pairs_of(data)]), theirs.encode([a for _, a in pairs_of(data)])
    expected = (asked * told).sum(1) / np.linalg.norm(asked, axis=1) / np.linalg.norm(told, axis=1)
    np.testing.assert_allclose(score_answers(folder, data, MAX_LENGTH, say=said.append), expected, atol=1e-5)
    assert said == ["bi is scored by the cosine of embeddings"]


def test_a_bi_encoder_by_its_own_prompts_and_similarity(bi_encoder, data):
    prompts = {"query": "engine winter ", "document": "silver "}
    folder, said = str(bi_encoder(prompts=prompts, similarity_fn_name="dot")), []
    theirs = SentenceTransformer(folder, device="cpu")
    asked = theirs.encode([prompts["query"] + q for q, _ in pairs_of(data)])
    told = theirs.encode([prompts["document"] + a for _, a in pairs_of(data)])
    scores = score_answers(folder, data, MAX_LENGTH, say=said.append)
    np.testing.assert_allclose(scores, (asked * told).sum(1), rtol=1e-4)
    assert said == ["bi is scored by the dot of embeddings"]


def test_an_encoder_without_a_head_is_said_to_be_scored_by_cosine(make_model, data):
    said = []
    score_answers(str(make_model(headless=True)), data, MAX_LENGTH, say=said.append)
    assert "is scored by the cosine of embeddings, the mean over its tokens, for want of a head" in said[-1]


def test_what_is_a_bi_encoder(bi_encoder, make_model, tmp_path, monkeypatch):
    """A folder or a name on the hub, here one that was downloaded before; its class decides before its modules."""
    cache = tmp_path / "hub"
    home = cache / "models--someone--bi"
    (home / "refs").mkdir(parents=True)
    (home / "refs/main").write_text("abc")
    shutil.copytree(bi_encoder(), home / "snapshots/abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert is_bi_encoder("someone/bi")
    folder = bi_encoder("other")
    for architectures, expected in (
        (["BertModel"], True),
        (["MPNetForMaskedLM"], True),  # as all-mpnet-base-v2 says
        (None, True),
        (["BertForSequenceClassification"], False),
    ):
        config = json.loads((folder / "config.json").read_text()) | {"architectures": architectures}
        (folder / "config.json").write_text(json.dumps(config))
        assert is_bi_encoder(str(folder)) == expected
    (folder / "modules.json").unlink()
    for architectures, expected in (
        (["BertModel"], True),
        (None, False),
        ([], False),
        (["BertForMaskedLM"], False),
        (["GPT2LMHeadModel"], False),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
        assert is_bi_encoder(str(folder)) == expected


def test_what_cannot_score(made, make_model, data):
    with pytest.raises(KinspanError, match="has 3 labels: give one of 1 or 2"):
        score_answers(str(made("bert", num_labels=3)), data)
    with pytest.raises(KinspanError, match="--max_length 64 is more than the 16 positions"):
        score_answers(str(made("bert", max_position_embeddings=16)), data, 64)
    with pytest.raises(KinspanError, match="no model at nowhere/at-all"):
        score_answers("nowhere/at-all", data)


@pytest.mark.parametrize("kind", ["cross-encoder", "plain encoder", "bi-encoder"])
def test_nothing_scores_without_a_tokenizer(kind, made, make_model, bi_encoder, data, tmp_path):
    """Of weights alone transformers makes a tokenizer that takes every word for unknown, and scores by chance."""
    made_of = {"cross-encoder": made, "plain encoder": lambda: make_model(headless=True), "bi-encoder": bi_encoder}
    ignored = shutil.ignore_patterns("tokenizer*", "vocab*", "special_tokens*")
    folder = shutil.copytree(made_of[kind](), tmp_path / "bare", ignore=ignored)
    with pytest.raises(KinspanError, match=rf"{folder} has no tokenizer \(no tokenizer\.json\)"):
        score_answers(str(folder), data, MAX_LENGTH)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_two_labels_fine_tune_and_save_as_one_logit(family, made, data, tmp_path):
    folder = made(family, num_labels=2)
    ranker, notes = load_ranker(str(folder))
    assert notes == ["the two labels of the head are folded into one logit: label 1 less label 0"]
    save_ranker(ranker.classifier.config, load_tokenizer(str(folder)), 64, ranker.state_dict(), tmp_path / "one")
    expected = score_answers(str(folder), data, MAX_LENGTH)
    np.testing.assert_allclose(score_answers(str(tmp_path / "one"), data, MAX_LENGTH), expected, atol=1e-5)


def test_a_ranker_states_the_length_that_it_was_trained_on(made, data, tmp_path):
    """Whoever loads the folder cuts where training did: CrossEncoder, and every command that is not told otherwise."""
    length, said = 16, []
    start = str(made("bert"))
    ranker, _ = load_ranker(start)
    tokenizer = load_own_tokenizer(start)
    save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), tmp_path / "best")
    folder = str(tmp_path / "best")
    assert CrossEncoder(folder, device="cpu").max_seq_length == length
    assert find_trained_length(folder) == length
    assert find_trained_length(start) is None
    own = score_answers(folder, data, say=said.append)
    assert np.array_equal(own, score_answers(folder, data, length))
    asked, told = zip(*pairs_of(data), strict=True)
    cut = np.array([len(ids) > length for ids in tokenizer(list(asked), list(told))["input_ids"]])
    right = data.labels[cut].sum()
    assert 0 < right < cut.sum()
    assert said == [
        f"files test: {cut.sum()} of {len(cut)} pairs cut, {right} of them right ones (--max_length {length})"
    ]
    score_answers(folder, data, 20, say=said.append)
    name = tmp_path.name
    assert said[1] == f"{name}: pairs are cut at --max_length 20, where the model's own is {length}"


def test_a_fine_tuned_bi_encoder_is_trained_further_on_as_many_tokens(made, tmp_path):
    start, folder = str(made("bert")), str(tmp_path / "best")
    ranker, _ = load_siamese_ranker(start, 1)
    save_siamese_ranker(ranker.config, load_own_tokenizer(start), 16, ranker.state_dict(), tmp_path / "best")
    assert find_trained_length(folder) == SentenceTransformer(folder, device="cpu").max_seq_length == 16


def test_what_of_a_bi_encoder_is_not_trained_further_is_said(bi_encoder):
    assert describe_left_out(str(bi_encoder("plain"))) == []
    folder = bi_encoder("odd", prompts={"query": "query: "})
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"pooling_mode": "cls"}))
    (said,) = describe_left_out(str(folder))
    assert "odd is trained without its pooling (cls), its prompts: a vector is the mean" in said


def test_a_bi_encoder_takes_its_own_length_and_says_what_is_cut(bi_encoder, data):
    folder, said = str(bi_encoder()), []
    own = score_answers(folder, data, say=said.append)
    np.testing.assert_array_equal(own, score_answers(folder, data, MAX_LENGTH))
    shorter = score_answers(folder, data, 8, say=said.append)
    assert not np.array_equal(own, shorter)
    assert f"bi: texts are cut at --max_length 8, where the model's own is {MAX_LENGTH}" in said
    assert any("pairs cut" in line and "(--max_length 8)" in line for line in said)
    prompted = str(bi_encoder("prompted", prompts={"document": "silver " * (MAX_LENGTH - 2)}))
    score_answers(prompted, data, say=said.append)
    assert any(f"{data.num_pairs} of {data.num_pairs} pairs cut" in line for line in said)  # a prompt takes their room
    longer = score_answers(folder, data, 999, say=said.append)
    np.testing.assert_array_equal(own, longer)
    assert f"bi: texts are cut at {MAX_LENGTH} tokens, its most, and not at --max_length 999" in said
    for refused in (lambda: score_answers(folder, data, 2), lambda: Embedder(folder, 2)):
        with pytest.raises(KinspanError, match="--max_length 2 is too short for a text: use at least 3"):
            refused()


def test_an_empty_candidate_is_scored_as_by_cross_encoder(made, data):
    """It has its two separators, as from ``tokenizer([question], [""])``; ``tokenizer(question, "")`` leaves it out."""
    folder = made("bert")
    empty = replace(data, answers=pa.array([""] * data.num_pairs, pa.large_string()))
    theirs = CrossEncoder(str(folder), max_length=MAX_LENGTH, device="cpu")
    expected = theirs.predict(pairs_of(empty), activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(score_answers(str(folder), empty, MAX_LENGTH), expected, atol=1e-5)
