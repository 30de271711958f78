import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AlbertForPreTraining,
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    DistilBertConfig,
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
    """``make_scored(model_class, family, **config)``: a folder with fresh weights of the class, and the model."""

    def make(model_class, family="bert", **options):
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
    """``held_out(objective, anchors)``: both texts of held-out pairs, and which pairs are positive."""

    def read(objective, anchors):
        stream = make_stream(tiny_corpus, objective=objective, split="validation")
        count = anchors * OBJECTIVES[objective].pairs_per_anchor
        pairs = list(decode_pairs(stream, load_tokenizer(short_tokenizer()), 0, count))
        texts = [pair["a"] for pair in pairs], [pair["b"] for pair in pairs]
        return texts, np.array([pair["kind"] == "positive" for pair in pairs])

    return read


def encode(texts, tokenizer):
    out = tokenizer(*texts, truncation="longest_first", max_length=128, return_token_type_ids=True)
    starts = np.cumsum([0, *map(len, out["input_ids"])])
    return PackedPairs(np.concatenate(out["input_ids"]), np.concatenate(out["token_type_ids"]), starts)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_release_as_a_cross_encoder(family, make_scored, held_out):
    folder, model = make_scored(AutoModelForSequenceClassification, family, num_labels=1)
    config = make_release_config(model.config.to_dict(), FAMILIES[family].classifier)
    type(model.config)(**config).save_pretrained(folder)
    texts, _ = held_out("ssp", 6)
    scorer = load_scorer(folder)
    ours = score_padded(scorer, encode(texts, scorer.tokenizer), 7)
    encoder = CrossEncoder(folder, max_length=128, activation_fn=torch.nn.Identity())
    theirs = encoder.predict(list(zip(*texts, strict=True)))
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.ptp(ours) > 1e-3


def test_batches_and_order_do_not_matter(make_scored, held_out):
    folder, _ = make_scored(AutoModelForSequenceClassification, num_labels=2)
    scorer = load_scorer(folder)
    encoded = encode(held_out("psd", 5)[0], scorer.tokenizer)
    assert np.allclose(score_padded(scorer, encoded, 3), score_padded(scorer, encoded, 25), atol=1e-4)


def test_two_labels_score_the_second_over_the_first(make_scored, held_out):
    folder, model = make_scored(AutoModelForSequenceClassification, num_labels=2)
    torch.nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([1.0, 3.5])
    model.save_pretrained(folder)
    scorer = load_scorer(folder)
    assert score_padded(scorer, encode(held_out("ssp", 3)[0], scorer.tokenizer), 8) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("model_class", "family", "head"),
    [
        (BertForNextSentencePrediction, "bert", "cls.seq_relationship"),
        (BertForPreTraining, "bert", "cls.seq_relationship"),
        (AlbertForPreTraining, "albert", "sop_classifier.classifier"),
    ],
)
def test_heads_of_pre_training_have_label_0_for_the_positive(model_class, family, head, make_scored, held_out):
    """The head is made to read the pairs' labels off the hidden state of their first token, and to say 0 for 1."""
    folder, model = make_scored(model_class, family)
    texts, is_positive = held_out("sop" if family == "albert" else "nsp", 6)
    scorer = load_scorer(folder)
    assert type(scorer.model) is (AlbertForPreTraining if family == "albert" else BertForNextSentencePrediction)
    encoded = encode(texts, scorer.tokenizer)
    pooled = []
    linear = scorer.model.get_submodule(head)
    hook = linear.register_forward_hook(lambda module, inputs, out: pooled.append(inputs[0]))
    score_padded(scorer, encoded, len(is_positive))
    hook.remove()
    positive = is_positive[np.argsort(-np.diff(encoded.starts), kind="stable")]
    features = torch.cat([pooled[0], torch.ones(len(positive), 1)], dim=1).double()
    labels = torch.stack([torch.from_numpy(positive), torch.from_numpy(~positive)], 1).double()
    solved = torch.linalg.lstsq(features, labels).solution
    own = model.get_submodule(head)
    own.weight.data, own.bias.data = solved[:-1].T.float().contiguous(), solved[-1].float()
    model.save_pretrained(folder)
    scores = score_padded(load_scorer(folder), encoded, 7)
    assert ((scores > 0) == is_positive).all()


def test_a_bert_that_names_its_masked_lm_is_scored_by_its_next_sentence_head(make_scored):
    """As the hub's bert-base-uncased does, whose file holds both heads."""
    folder, model = make_scored(BertForPreTraining)
    model.config.architectures = ["BertForMaskedLM"]
    model.config.save_pretrained(folder)
    assert type(load_scorer(folder).model) is BertForNextSentencePrediction


def test_what_cannot_be_scored_is_one_line(make_scored, make_model, tmp_path):
    def refuses(text, do, *arguments):
        with pytest.raises(KinspanError, match=text) as caught:
            do(*arguments)
        assert "\n" not in str(caught.value)

    refuses("no model at", load_scorer, str(tmp_path))
    refuses("holds no weights", load_scorer, str(make_model("bert")))
    refuses("cls.seq_relationship", load_scorer, make_scored(BertForMaskedLM)[0])
    refuses("has 3 labels", load_scorer, make_scored(AutoModelForSequenceClassification, num_labels=3)[0])
    folder, model = make_scored(AutoModelForSequenceClassification, num_labels=1)
    shutil.rmtree(tmp_path)
    shutil.copytree(folder, tmp_path)
    torch_weights = {k: v for k, v in model.state_dict().items() if not k.startswith("classifier")}
    model.save_pretrained(str(tmp_path), state_dict=torch_weights)
    refuses("has no weights for classifier.weight", load_scorer, str(tmp_path))
    scorer = load_scorer(folder)
    refuses("--max_length 600", check_fits, scorer.name, scorer.model, scorer.tokenizer, 600)
    refuses("no head for pairs", load_scorer, electra_discriminator(make_scored))


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
    scorer = Scorer("it", model, load_tokenizer(short_tokenizer()), "", lambda out: out.logits[:, 0])
    check_fits(scorer.name, scorer.model, scorer.tokenizer, positions or 100_000)
    if positions:
        ids = torch.full((1, positions), 1000)
        model(ids)
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, positions + 1), 1000))
        with pytest.raises(KinspanError, match=f"more than the {positions} positions of it"):
            check_fits(scorer.name, scorer.model, scorer.tokenizer, positions + 1)


def test_a_second_text_needs_its_token_type(make_scored):
    scorer = load_scorer(make_scored(AutoModelForSequenceClassification, num_labels=1, type_vocab_size=1)[0])
    with pytest.raises(KinspanError, match="makes the token type 1, the model has 1"):
        check_fits(scorer.name, scorer.model, scorer.tokenizer, 128)


def electra_discriminator(make_scored):
    from transformers import ElectraForPreTraining

    return make_scored(ElectraForPreTraining, "electra")[0]


def test_the_default_model_has_no_head():
    with pytest.raises(KinspanError, match="has no weights for"):
        load_scorer(default_model())
