"""Vectors of packed texts are those of sentence-transformers."""

import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer

from data_pipeline.core.errors import KinspanError
from finetune.ranking.embedder import Embedder
from pretrain.release.folder import fingerprint_model

TEXTS = ["a river", "the green market in winter " * 40, "x", "stone bridge over silver water, and a garden", ""]


@pytest.fixture(scope="module")
def headless(make_model):
    return make_model(headless=True, max_position_embeddings=64)


@pytest.fixture(scope="module")
def saved(headless, tmp_path_factory):
    """``saved(mode, prompts)``: a folder of sentence-transformers."""

    def save(mode, prompts=None):
        folder = tmp_path_factory.mktemp(mode)
        encoder = Transformer(str(headless), max_seq_length=32)
        modules = [encoder, Pooling(encoder.get_embedding_dimension(), mode), Normalize()]
        SentenceTransformer(modules=modules, prompts=prompts).save(str(folder))
        return folder

    return save


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_they_are_those_of_sentence_transformers(saved, mode):
    folder = str(saved(mode, {"query": "question: ", "document": "answer: "}))
    embedder, theirs = Embedder(folder), SentenceTransformer(folder)
    assert (embedder.packed is None) == (mode == "max")
    assert embedder.max_length == 32
    asked, told = embedder.embed_queries(TEXTS), embedder.embed_answers(TEXTS)
    assert np.abs(asked - theirs.encode_query(TEXTS)).max() < 1e-5
    assert np.abs(told - theirs.encode_document(TEXTS)).max() < 1e-5
    assert np.abs(asked - told).max() > 1e-3  # the prompts are different
    assert np.abs(np.linalg.norm(told, axis=1) - 1).max() < 1e-5


def test_routes_and_prompts_outside_the_pooling_are_those_of_sentence_transformers(headless, make_model, tmp_path):
    other = make_model(headless=True, max_position_embeddings=64)
    parts = [[Transformer(str(path), max_seq_length=n), Pooling(32)] for path, n in ((headless, 24), (other, 32))]
    instructed = [Transformer(str(headless)), Pooling(32, include_prompt=False)]
    shortened = Transformer(str(headless))
    shortened.query_length = 8
    static = StaticEmbedding(shortened.tokenizer.backend_tokenizer, embedding_dim=16)
    routed, dot = [Router.for_query_document(*parts)], [*parts[0], Normalize()]
    for number, modules in enumerate((routed, instructed, [shortened, Pooling(32)], [static], dot)):
        folder, similarity = str(tmp_path / str(number)), "dot" if modules is dot else "cosine"
        made = SentenceTransformer(modules=modules, prompts={"query": "green: "}, similarity_fn_name=similarity)
        made.save(folder)
        theirs = SentenceTransformer(folder)
        for embedder in (Embedder(folder), Embedder(folder, max_length=Embedder(folder).max_length)):  # as in an index
            assert embedder.note_unknown(["a river"]) == []
            asked, told = embedder.embed_queries(TEXTS), embedder.embed_answers(TEXTS)
            assert np.abs(asked - theirs.encode_query(TEXTS, normalize_embeddings=True)).max() < 1e-5
            assert np.abs(told - theirs.encode_document(TEXTS, normalize_embeddings=True)).max() < 1e-5


def test_it_counts_what_it_does_not_read_to_the_end(saved):
    embedder = Embedder(str(saved("mean")))
    assert embedder.find_cut(TEXTS).tolist() == [False, True, False, False, False]
    assert embedder.find_cut(["a " * 30, "a " * 31]).tolist() == [False, True]  # [CLS] and [SEP] make 32 and 33
    assert embedder.find_cut([]).tolist() == []
    assert [len(embedder.note_unknown(texts)) for texts in ([], ["a river"], ["今天天气很好"])] == [0, 0, 1]


def test_an_encoder_without_a_head_gives_the_mean(headless):
    embedder = Embedder(str(headless), max_length=16)
    theirs = SentenceTransformer(str(headless))
    theirs.max_seq_length = 16
    assert embedder.packed
    assert np.abs(embedder.embed_answers(TEXTS) - theirs.encode(TEXTS, normalize_embeddings=True)).max() < 1e-5
    alone = np.concatenate([embedder.embed_answers([text]) for text in TEXTS])
    assert np.abs(alone - embedder.embed_answers(TEXTS)).max() < 1e-6


def test_no_text_injects_a_special_token_and_none_breaks_it(headless):
    embedder = Embedder(str(headless))
    odd = ["a [SEP] b", "\ud800 half", "\0", "a" * 1_000_000]
    vectors = embedder.embed_queries([*odd, "a [ SEP ] b"])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[0] - vectors[-1]).max() < 1e-6


def test_a_model_that_does_not_fit_is_refused_and_positions_are_never_exceeded(model, make_model, headless, caplog):
    with pytest.raises(KinspanError, match="--model"):
        Embedder(str(model))  # reads both texts together
    assert Embedder(str(headless), max_length=65).max_length == 64
    assert "--max_length 65" in caplog.text
    with pytest.raises(KinspanError, match="tokenizer"):
        Embedder(str(make_model(headless=True, vocab_size=500)))
    embedder = Embedder(str(make_model("roberta", headless=True, max_position_embeddings=34)))
    assert embedder.max_length == 32
    assert np.isfinite(embedder.embed_answers(TEXTS)).all()


def test_a_fingerprint_names_all_that_decides_the_vectors(saved, tmp_path):
    first = saved("mean")
    own = fingerprint_model(str(first))
    assert own == fingerprint_model(str(shutil.copytree(first, tmp_path / "copy")))
    (tmp_path / "copy/README.md").write_text("a card says nothing")
    assert own == fingerprint_model(str(tmp_path / "copy"))
    parts = "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer.json", "2_Normalize/pytorch_model.bin"
    for name in parts:
        changed = tmp_path / name / "changed"
        shutil.copytree(first, changed)
        (changed / name).parent.mkdir(exist_ok=True)
        (changed / name).write_text("another")
        assert own != fingerprint_model(str(changed)), name
    (tmp_path / "linked").mkdir()
    for path in first.iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path, target_is_directory=path.is_dir())
    assert own == fingerprint_model(str(tmp_path / "linked"))


def test_a_model_of_the_hub_is_named_by_its_commit(tmp_path, monkeypatch):
    """What the hub's cache holds, as huggingface_hub lays it out."""
    cached = tmp_path / "models--me--finder"
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True)
    (cached / "refs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        (cached / "snapshots" / commit).mkdir(parents=True)
        (cached / "snapshots" / commit / "modules.json").write_text("[]")
        (cached / "refs/main").write_text(commit)
        assert fingerprint_model("me/finder") == f"me/finder@{commit}"
    with pytest.raises(KinspanError, match="no model at me/absent"):
        fingerprint_model("me/absent")
