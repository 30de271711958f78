import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    DistilBertConfig,
    ElectraForPreTraining,
    XLMRobertaConfig,
    XLNetConfig,
)

from data_pipeline.browse import decode_pairs
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from objectives import OBJECTIVES
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.scorer import PackedPairs, Scorer, check_fits, load_scorer, score_padded
from pretrain.release.release import make_release_config
from tests.synthetic import short_tokenizer


@pytest.fixture
def make_scored(make_model):
    """``make_scored(family, model_class, **config)``: a folder with fresh weights of the class, and the model."""

    def make(family="bert", model_class=AutoModelForSequenceClassification, **options):
        folder = make_model(family, initializer_range=0.3, **options)
        config = AutoConfig.from_pretrained(str(folder))
        torch.manual_seed(3)
        make_it = getattr(model_class, "_from_config", None) or model_class.from_config
        model = make_it(config).eval()
        model.save_pretrained(str(folder))
        return str(folder), model

    return make


@pytest.fixture
def held_out(make_stream, tiny_corpus):
    """``held_out(objective, anchors)``: both texts of held-out pairs."""

    def read(objective, anchors):
        stream = make_stream(tiny_corpus, objective=objective, split="validation")
        count = anchors * OBJECTIVES[objective].pairs_per_anchor
        pairs = list(decode_pairs(stream, load_tokenizer(short_tokenizer()), 0, count))
        return [pair["a"] for pair in pairs], [pair["b"] for pair in pairs]

    return read


def encode(texts, tokenizer):
    out = tokenizer(*texts, truncation="longest_first", max_length=128, return_token_type_ids=True)
    starts = np.cumsum([0, *map(len, out["input_ids"])])
    return PackedPairs(np.concatenate(out["input_ids"]), np.concatenate(out["token_type_ids"]), starts)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_release_as_a_cross_encoder(family, make_scored, held_out):
    folder, model = make_scored(family, num_labels=1)
    config = make_release_config(model.config.to_dict(), FAMILIES[family].classifier)
    type(model.config)(**config).save_pretrained(folder)
    texts = held_out("ssp", 6)
    scorer = load_scorer(folder)
    ours = score_padded(scorer, encode(texts, scorer.tokenizer), 7)
    encoder = CrossEncoder(folder, max_length=128, activation_fn=torch.nn.Identity())
    theirs = encoder.predict(list(zip(*texts, strict=True)))
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.ptp(ours) > 1e-3


def test_two_labels_score_the_second_over_the_first(make_scored, held_out):
    folder, model = make_scored(num_labels=2)
    torch.nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([1.0, 3.5])
    model.save_pretrained(folder)
    scorer = load_scorer(folder)
    assert score_padded(scorer, encode(held_out("ssp", 3), scorer.tokenizer), 8) == pytest.approx(2.5)


def lose_the_head(make_scored, make_model):
    folder, model = make_scored(num_labels=1)
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith("classifier")}
    model.save_pretrained(folder, state_dict=kept)
    return folder


@pytest.mark.parametrize(
    "make",
    [
        lambda make_scored, make_model: f"{make_model()}/absent",
        lambda make_scored, make_model: str(make_model()),  # without weights
        lambda make_scored, make_model: make_scored(model_class=BertForMaskedLM)[0],
        lambda make_scored, make_model: make_scored(model_class=ElectraForPreTraining, family="electra")[0],
        lambda make_scored, make_model: make_scored(num_labels=3)[0],
        lose_the_head,
        lambda make_scored, make_model: default_model(),
    ],
)
def test_what_cannot_score_is_refused_by_name(make, make_scored, make_model):
    folder = make(make_scored, make_model)
    with pytest.raises(KinspanError, match=folder):
        load_scorer(folder)


SMALL = {"vocab_size": 31_000, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (XLMRobertaConfig(**SMALL, type_vocab_size=2, max_position_embeddings=66, pad_token_id=1), 64),
        (DistilBertConfig(vocab_size=31_000, dim=32, n_layers=1, n_heads=2, hidden_dim=64), 512),
        (XLNetConfig(vocab_size=31_000, d_model=32, n_layer=1, n_head=2, d_inner=64), None),
    ],
)
def test_positions_of_families_that_are_not_trained_here(config, positions):
    model = AutoModelForSequenceClassification.from_config(config).eval()
    scorer = Scorer("it", model, load_tokenizer(short_tokenizer()))
    check_fits(scorer.name, scorer.model, scorer.tokenizer, positions or 100_000)
    if positions:
        ids = torch.full((1, positions), 1000)
        model(ids)
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, positions + 1), 1000))
        with pytest.raises(KinspanError, match="--max_length"):
            check_fits(scorer.name, scorer.model, scorer.tokenizer, positions + 1)


def test_a_second_text_needs_its_token_type(make_scored):
    scorer = load_scorer(make_scored(num_labels=1, type_vocab_size=1)[0])
    with pytest.raises(KinspanError, match=scorer.name):
        check_fits(scorer.name, scorer.model, scorer.tokenizer, 128)
