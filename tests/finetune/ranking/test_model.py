"""Scores against the libraries whose models they are of."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from finetune.ranking.kinds import find_kind, load_bi_encoder
from finetune.ranking.model import load_model, score_answers
from finetune.ranking.ranker import find_max_length, load_own_tokenizer, load_ranker, save_ranker
from finetune.ranking.siamese import list_untrained_parts, load_siamese_ranker, save_siamese_ranker

# Length 24 cuts some of the pairs.
MAX_LENGTH = 24
FAMILIES = ("bert", "roberta", "camembert", "distilbert", "electra", "modernbert", "mpnet", "ernie")  # no packed ERNIE


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
        return make_model(family, tokenizer=tokenizer, **{"initializer_range": 0.3} | options)

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


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_the_models_own_forward(family, made, data):
    options = {"classifier_pooling": "cls"} if family == "modernbert" else {}
    folder = made(family, **options)
    expected = with_transformers(folder, data)[:, 0]
    scores = score_answers(str(folder), data, MAX_LENGTH)
    assert scores.std() > 1e-3
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "ernie", "modernbert"])
def test_a_classifier_of_two_labels(family, made, data):
    """Packed, by CrossEncoder as a family that is not known, and by CrossEncoder as its head reads all tokens."""
    folder = made(family, num_labels=2, **{"classifier_pooling": "mean"} if family == "modernbert" else {})
    logits = with_transformers(folder, data)
    np.testing.assert_allclose(score_answers(str(folder), data, MAX_LENGTH), logits[:, 1] - logits[:, 0], atol=1e-5)


@pytest.fixture
def bi_encoder(make_model, tmp_path):
    """``bi_encoder(**options)``: a folder of sentence-transformers, with options of SentenceTransformer."""

    def make(name="bi", **options):
        encoder = make_model(headless=True, initializer_range=0.3)
        words = Transformer(str(encoder), max_seq_length=MAX_LENGTH)
        SentenceTransformer(modules=[words, Pooling(32)], device="cpu", **options).save(str(tmp_path / name))
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    "options",
    [{}, {"prompts": {"query": "engine winter ", "document": "silver "}, "similarity_fn_name": "dot"}],
    ids=["cosine", "dot-and-prompts"],
)
def test_a_bi_encoder_by_its_own_prompts_and_similarity(options, bi_encoder, data):
    folder, prompts = str(bi_encoder(**options)), {"query": "", "document": ""} | options.get("prompts", {})
    theirs = SentenceTransformer(folder, device="cpu")
    queries = theirs.encode([prompts["query"] + q for q, _ in pairs_of(data)])
    answers = theirs.encode([prompts["document"] + a for _, a in pairs_of(data)])
    expected = (queries * answers).sum(1)
    if not options:
        expected = expected / np.linalg.norm(queries, axis=1) / np.linalg.norm(answers, axis=1)
    np.testing.assert_allclose(score_answers(folder, data, MAX_LENGTH), expected, rtol=1e-4, atol=1e-5)


def test_what_is_a_bi_encoder(bi_encoder, make_model, tmp_path, monkeypatch):
    """A folder or a name on the hub, here one that was downloaded before; its class decides before its modules."""
    cache = tmp_path / "hub"
    home = cache / "models--someone--bi"
    (home / "refs").mkdir(parents=True)
    (home / "refs/main").write_text("abc")
    shutil.copytree(bi_encoder(), home / "snapshots/abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert find_kind("someone/bi") == "bi-encoder"
    folder = bi_encoder("other")
    for architectures, expected in (
        (["BertModel"], True),
        (["MPNetForMaskedLM"], True),  # as all-mpnet-base-v2 says
        (None, True),
        (["BertForSequenceClassification"], False),
    ):
        config = json.loads((folder / "config.json").read_text()) | {"architectures": architectures}
        (folder / "config.json").write_text(json.dumps(config))
        assert (find_kind(str(folder)) == "bi-encoder") == expected
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": "SparseEncoder"}))
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(KinspanError, match=str(folder)):
        find_kind(str(folder))
    assert load_ranker(str(folder))  # its encoder may be trained
    (folder / "modules.json").unlink()
    for architectures, expected in (
        *[(["BertModel"], True), (None, False), ([], False), (["BertForMaskedLM"], False)],
        (["GPT2LMHeadModel"], False),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
        assert (find_kind(str(folder)) == "bi-encoder") == expected


def test_a_cross_encoder_with_a_prompt_of_its_own(made, data, tmp_path):
    prompted = CrossEncoder(str(made("bert")), device="cpu", prompts={"rank": "silver "}, default_prompt_name="rank")
    prompted.save_pretrained(str(tmp_path / "prompted"))
    expected = prompted.predict(pairs_of(data), activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(score_answers(str(tmp_path / "prompted"), data), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected, score_answers(str(made("bert")), data), atol=1e-3)


def test_what_cannot_score(made, bi_encoder, data):
    positions = str(made("bert", max_position_embeddings=16))
    nan = bi_encoder()
    broken = {name: tensor * np.nan for name, tensor in load_file(nan / "model.safetensors").items()}
    save_file(broken, nan / "model.safetensors", {"format": "pt"})
    cut = bi_encoder("cut")
    save_file(dict(list(load_file(cut / "model.safetensors").items())[1:]), cut / "model.safetensors", {"format": "pt"})
    for match, arguments in (
        *[("--model .* lacks weights", (str(cut), data)), ("has 3 labels", (str(made("bert", num_labels=3)), data))],
        *[("--max_length", (positions, data, 64)), ("--max_length", (str(bi_encoder("short")), data, 2))],
        *[("nowhere/at-all", ("nowhere/at-all", data)), ("is not finite", (str(nan), data))],
    ):
        with pytest.raises(KinspanError, match=match):
            score_answers(*arguments)


@pytest.mark.parametrize("kind", ["cross-encoder", "plain encoder", "bi-encoder"])
def test_nothing_scores_without_a_tokenizer(kind, made, make_model, bi_encoder, data, tmp_path):
    """Of weights alone transformers makes a tokenizer that takes every word for unknown, and scores by chance."""
    made_of = {"cross-encoder": made, "plain encoder": lambda: make_model(headless=True), "bi-encoder": bi_encoder}
    ignored = shutil.ignore_patterns("tokenizer*", "vocab*", "special_tokens*")
    folder = shutil.copytree(made_of[kind](), tmp_path / "bare", ignore=ignored)
    with pytest.raises(KinspanError, match=str(folder)):
        score_answers(str(folder), data, MAX_LENGTH)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_two_labels_fine_tune_and_save_as_one_logit(family, made, data, tmp_path):
    folder = made(family, num_labels=2)
    ranker = load_ranker(str(folder))
    save_ranker(ranker.classifier.config, load_tokenizer(str(folder)), 64, ranker.state_dict(), tmp_path / "one")
    expected = score_answers(str(folder), data, MAX_LENGTH)
    np.testing.assert_allclose(score_answers(str(tmp_path / "one"), data, MAX_LENGTH), expected, atol=1e-5)


def test_what_a_head_loses_is_told(made, caplog):
    caplog.set_level("INFO")
    assert load_ranker(str(made("bert", num_labels=3))).classifier.classifier.out_features == 1
    assert "starts fresh" in caplog.text
    one, two = (load_ranker(str(made("bert", num_labels=3)), seed).state_dict() for seed in (1, 2))
    assert not torch.equal(one["classifier.classifier.weight"], two["classifier.classifier.weight"])
    for pooling in ("mean", "cls"):  # of which training reads the second
        load_ranker(str(made("modernbert", classifier_pooling=pooling)))
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_a_ranker_states_the_length_that_it_was_trained_on(made, data, tmp_path):
    """Whoever loads the folder cuts where training did: CrossEncoder, and every command that is not told otherwise."""
    length, start = 16, str(made("bert"))
    ranker, tokenizer = load_ranker(start), load_own_tokenizer(start)
    save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), tmp_path / "best")
    folder = str(tmp_path / "best")
    assert CrossEncoder(folder, device="cpu").max_seq_length == length
    assert find_max_length(folder) == length
    assert find_max_length(start) == CrossEncoder(start, device="cpu").max_seq_length == 512
    model = load_model(folder)
    np.testing.assert_array_equal(model.score(data), score_answers(folder, data, length))
    questions, answers = zip(*pairs_of(data), strict=True)
    cut = sum(len(ids) > length for ids in tokenizer(list(questions), list(answers))["input_ids"])
    assert (model.max_length, model.num_cut, model.num_pairs) == (length, cut, data.num_pairs)


def test_a_fine_tuned_bi_encoder_is_trained_further_on_as_many_tokens(made, tmp_path):
    start, folder = str(made("bert")), str(tmp_path / "best")
    ranker = load_siamese_ranker(start, 1)
    save_siamese_ranker(ranker.config, load_own_tokenizer(start), 16, ranker.state_dict(), tmp_path / "best")
    assert find_max_length(folder) == SentenceTransformer(folder, device="cpu").max_seq_length == 16


@pytest.mark.parametrize("family", FAMILIES)
def test_the_own_length_is_that_of_sentence_transformers(family, made, make_model, bi_encoder):
    """Fine-tuning and ranking read it: from settings, positions or the tokenizer."""
    for folder in (str(bi_encoder()), str(make_model(family, headless=True))):
        assert find_max_length(folder) == load_model(folder).max_length
        assert find_max_length(folder) == SentenceTransformer(folder, device="cpu").max_seq_length
    folder = str(made(family))
    assert find_max_length(folder) == min(512, CrossEncoder(folder, device="cpu").max_seq_length)  # RoBERTa: 514 rows


def test_parts_of_a_bi_encoder_that_are_not_trained_further(bi_encoder):
    assert list_untrained_parts(load_bi_encoder(str(bi_encoder("plain")))) == []
    folder = bi_encoder("odd", prompts={"query": "query: "})
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"pooling_mode": "cls"}))
    assert list_untrained_parts(load_bi_encoder(str(folder))) == ["its pooling (cls)", "its prompts"]


def test_a_bi_encoder_takes_its_own_length_and_counts_cut_pairs(bi_encoder, data):
    folder = str(bi_encoder())
    own = score_answers(folder, data)
    np.testing.assert_array_equal(own, score_answers(folder, data, MAX_LENGTH))
    np.testing.assert_array_equal(own, score_answers(folder, data, 999))
    assert not np.array_equal(own, score_answers(folder, data, precision="bf16"))
    shorter = load_model(folder, 8)
    assert not np.array_equal(own, shorter.score(data))
    assert (shorter.max_length, shorter.num_cut > 0) == (8, True)
    prompted = load_model(str(bi_encoder("prompted", prompts={"document": "silver " * (MAX_LENGTH - 2)})))
    prompted.score(data)
    assert prompted.num_cut == data.num_pairs  # a prompt takes their room


def test_an_empty_candidate_is_scored_as_by_cross_encoder(made, data):
    """It has its two separators, as from ``tokenizer([question], [""])``; ``tokenizer(question, "")`` leaves it out."""
    folder = made("bert")
    empty = replace(data, answers=pa.array([""] * data.num_pairs, pa.large_string()))
    theirs = CrossEncoder(str(folder), max_length=MAX_LENGTH, device="cpu")
    expected = theirs.predict(pairs_of(empty), activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(score_answers(str(folder), empty, MAX_LENGTH), expected, atol=1e-5)
