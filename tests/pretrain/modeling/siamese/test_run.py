"""Runs of bi-encoders: they stop and resume, and what they release gives sentence-transformers the same vectors."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel
from transformers.utils import logging

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import load_siamese_model
from pretrain.release.release import release
from pretrain.release.siamese import fill_siamese_folder
from pretrain.run import pretrain
from tests.pretrain.steps import expect_equal_runs, make_run, read_log, read_weights, stopped_in_step
from tests.synthetic import short_tokenizer

TEXTS = ["how do owls hunt at night ?", "owls", "the railway opened in the year of the great fire , " * 12]


@pytest.fixture
def config(make_model, tiny_corpus, tmp_path):
    """``config(name, **settings)``: of a small run of a bi-encoder with dropout in the folder of that name."""
    model = make_model(initializer_range=0.1)

    def make(name="run", **settings):
        common = {"max_steps": 8, "save_steps": 4, "eval_steps": 4, "eval_pairs": 20, "log_steps": 2, "max_length": 32}
        common |= {"deepspeed_config": "ds_configs/zero2.json", "pair_loss": "contrastive"}
        return make_run(tiny_corpus, model, tmp_path / name, **common | settings)

    return make


def embed_packed(model, tokenizer, texts, max_length):
    """The embeddings of texts, as training makes them: packed in one row."""
    ids = [tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    lengths = [len(tokens) for tokens in ids]
    inputs = {
        "input_ids": torch.tensor([token for tokens in ids for token in tokens]),
        "token_type_ids": torch.zeros(sum(lengths), dtype=torch.int64),
        "position_ids": torch.cat([torch.arange(n) for n in lengths]),
        "starts": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        "labels": torch.zeros(len(texts)),
        "max_length": max(lengths),
    }
    with torch.no_grad():
        return model.embed(inputs)[1][:, 0]


@pytest.mark.parametrize("stage", ["zero0", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_stopped_run_ends_as_if_nothing_had_been(stage, config, monkeypatch):
    settings = {"deepspeed_config": f"ds_configs/{stage}.json", "own_negatives": 1}
    whole, stopped = config("whole", **settings), config("stopped", **settings)
    pretrain(whole)
    with stopped_in_step(monkeypatch, 5):
        pretrain(stopped)
    pretrain(stopped)
    expect_equal_runs(stopped.output_dir, whole.output_dir, 8)
    rates = [read_log(run.output_dir, "validation", "pair_mrr", "pair_r1") for run in (whole, stopped)]
    assert rates[0] == rates[1]


def test_a_run_is_released_for_sentence_transformers(config, tmp_path):
    run = config(eval_steps=8, mlm_probability=0.0, objective="psd")
    pretrain(run)
    (before,), (after,) = read_log(run.output_dir, "validation", "pair_mrr")
    folder = release(Path(run.output_dir), tmp_path / "release")
    model, _ = load_siamese_model(str(folder), seed=0)
    trained = read_weights(run.output_dir, 8)
    for name, parameter in model.encoder.named_parameters():
        assert torch.equal(parameter, trained[f"encoder.{name}"])
    ours = embed_packed(model.eval(), load_tokenizer(str(folder)), TEXTS, 32)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert '"pooling_mode_cls_token": false' in (folder / "1_Pooling/config.json").read_text()  # asked for elsewhere
    card = (folder / "README.md").read_text()
    assert 'SentenceTransformer("path/to/this/folder")' in card
    assert f"| pair_mrr | {before:.3f} | {after:.3f} |" in card
    assert "Always predicting" not in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_same_vectors(family, make_model, tmp_path, caplog):
    source = make_model(family, initializer_range=0.1)
    model, _ = load_siamese_model(str(source), seed=5)
    tokenizer = load_tokenizer(short_tokenizer())
    tokenizer.save_pretrained(str(tmp_path))
    fill_siamese_folder(tmp_path, model.config.to_dict(), dict(model.named_parameters()), max_length=40)
    logging.set_verbosity_warning()
    logging.get_logger("transformers").addHandler(caplog.handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        theirs = SentenceTransformer(str(tmp_path), device="cpu")
    logging.set_verbosity_error()
    logging.get_logger("transformers").removeHandler(caplog.handler)
    assert not caplog.text
    assert theirs.max_seq_length == 40
    vectors = theirs.encode(TEXTS, convert_to_tensor=True)
    assert torch.allclose(embed_packed(model.eval(), tokenizer, TEXTS, 40), vectors, atol=1e-5)
    assert AutoModel.from_pretrained(str(tmp_path)).config.architectures == [type(model.encoder).__name__]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[({"pair_loss": None, "temperature": 0.1}, "--temperature"), ({"adapter": "pfeiffer"}, "--adapter")],
        *[({"token_loss": "rtd"}, "--token_loss rtd"), ({"pair_weight": 0.0}, "--pair_weight 0")],
        ({"own_negatives": 5}, "--own_negatives 5"),
        ({"global_batch_size": 1, "micro_batch_size": 1}, "--global_batch_size 1"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(settings, message, config):
    with pytest.raises(KinspanError, match=message):
        pretrain(config(**settings))
