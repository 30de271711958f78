import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertForPreTraining,
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    DistilBertConfig,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLNetConfig,
)

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.pairs import POSITIVE
from data_pipeline.tokenizers import load_tokenizer
from objectives import OBJECTIVES, parse_mixture
from pretrain.evaluation.pair_tests import (
    decode_texts,
    encode_held_out,
    evaluate_pairs,
    format_figures,
    select_held_out,
)
from pretrain.modeling.default_model import default_model
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.scorer import Scorer, check_fits, load_scorer, score_padded
from pretrain.release.release import make_release_config
from tests.synthetic import short_tokenizer


@pytest.fixture(scope="module")
def corpus(tiny_corpus):
    return Corpus(tiny_corpus)


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


@pytest.fixture(scope="module")
def other_tokenizer(tiny_documents, tmp_path_factory):
    """Another WordPiece, cut into smaller pieces; lower case, as the corpus's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([p for d in tiny_documents for p in d["paragraphs"]], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    folder = tmp_path_factory.mktemp("other")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": token for role, token in roles.items()}
    ).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_release_as_a_cross_encoder(family, make_scored, corpus):
    folder, model = make_scored(AutoModelForSequenceClassification, family, num_labels=1)
    config = make_release_config(model.config.to_dict(), FAMILIES[family].classifier)
    type(model.config)(**config).save_pretrained(folder)
    pairs = select_held_out(corpus, OBJECTIVES["ssp"], 6)
    scorer = load_scorer(folder)
    ours = score_padded(scorer, encode_held_out(pairs, corpus, scorer.tokenizer), 7)
    first, second = decode_texts(pairs, scorer.tokenizer)
    encoder = CrossEncoder(folder, max_length=128, activation_fn=torch.nn.Identity())
    theirs = encoder.predict(list(zip(first, second, strict=True)))
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.ptp(ours) > 1e-3


def test_batches_and_order_do_not_matter(make_scored, corpus):
    folder, _ = make_scored(AutoModelForSequenceClassification, num_labels=2)
    pairs = select_held_out(corpus, OBJECTIVES["psd"], 5)
    scorer = load_scorer(folder)
    encoded = encode_held_out(pairs, corpus, scorer.tokenizer)
    assert np.allclose(score_padded(scorer, encoded, 3), score_padded(scorer, encoded, 25), atol=1e-4)


def test_two_labels_score_the_second_over_the_first(make_scored, corpus):
    folder, model = make_scored(AutoModelForSequenceClassification, num_labels=2)
    torch.nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([1.0, 3.5])
    model.save_pretrained(folder)
    pairs = select_held_out(corpus, OBJECTIVES["ssp"], 3)
    scorer = load_scorer(folder)
    assert score_padded(scorer, encode_held_out(pairs, corpus, scorer.tokenizer), 8) == pytest.approx(2.5)


@pytest.mark.parametrize("objective", ["ssp", "sp", "psd", "nsp", "sop"])
def test_two_tokenizers_see_the_same_pairs(objective, corpus, other_tokenizer):
    pairs = select_held_out(corpus, OBJECTIVES[objective], 20, 4000)
    ours, theirs = load_tokenizer(str(corpus.folder / "tokenizer")), load_tokenizer(str(other_tokenizer))
    read = [texts_of(encode_held_out(pairs, corpus, t), t) for t in (ours, theirs)]
    assert read[0] == read[1]
    again = select_held_out(corpus, OBJECTIVES[objective], 20, 4000)
    assert (again.kinds == pairs.kinds).all()


def test_special_tokens_are_the_models_own(corpus):
    """A tokenizer of the corpus's vocabulary that joins two texts in another way."""
    tokenizer = load_tokenizer(short_tokenizer())
    ours = ("[SEP]", tokenizer.sep_token_id), ("[CLS]", tokenizer.cls_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.RobertaProcessing(*ours, add_prefix_space=False)
    pairs = select_held_out(corpus, OBJECTIVES["ssp"], 4)
    read = encode_held_out(pairs, corpus, tokenizer)
    first, second = decode_texts(pairs, tokenizer)
    theirs = tokenizer(first, second, truncation="longest_first", max_length=128)["input_ids"]
    assert np.concatenate(theirs).tolist() == read.ids.tolist()


def texts_of(encoded, tokenizer):
    rows = [encoded.ids[a:b] for a, b in zip(encoded.starts[:-1], encoded.starts[1:], strict=True)]
    joined = tokenizer.batch_decode(rows, clean_up_tokenization_spaces=False)
    return [text.replace(" ", "") for text in joined]


def test_texts_encoded_anew_are_cut_longest_first_and_read_no_special_token(
    make_corpus, other_tokenizer, helpers, monkeypatch
):
    documents = helpers.synthetic_documents(30)
    for document in documents:
        document["paragraphs"] = [p + " Then [SEP] and [CLS] were said." for p in document["paragraphs"]]
    corpus = Corpus(make_corpus(documents, validation_share=0.5))
    tokenizer = load_tokenizer(str(other_tokenizer))
    pairs = select_held_out(corpus, OBJECTIVES["psd"], 20, 64)
    encoded = encode_held_out(pairs, corpus, tokenizer)
    lengths = np.diff(encoded.starts)
    assert lengths.max() == 64
    for a, b in zip(encoded.starts[:-1], encoded.starts[1:], strict=True):
        assert list(np.flatnonzero(encoded.ids[a:b] == tokenizer.cls_token_id)) == [0]
        first, last = np.flatnonzero(encoded.ids[a:b] == tokenizer.sep_token_id)
        assert last == b - a - 1
        if b - a == 64:  # both are long: cut to equal lengths
            assert abs((first - 1) - (last - first - 1)) <= 1
        assert encoded.types[a:b].tolist() == [0] * (first + 1) + [1] * (last - first)


@pytest.mark.parametrize(
    ("model_class", "family", "head"),
    [
        (BertForNextSentencePrediction, "bert", "cls.seq_relationship"),
        (BertForPreTraining, "bert", "cls.seq_relationship"),
        (AlbertForPreTraining, "albert", "sop_classifier.classifier"),
    ],
)
def test_heads_of_pre_training_have_label_0_for_the_positive(model_class, family, head, make_scored, corpus):
    """The head is made to read the pairs' labels off the hidden state of their first token, and to say 0 for 1."""
    folder, model = make_scored(model_class, family)
    pairs = select_held_out(corpus, OBJECTIVES["sop" if family == "albert" else "nsp"], 6)
    scorer = load_scorer(folder)
    assert type(scorer.model) is (AlbertForPreTraining if family == "albert" else BertForNextSentencePrediction)
    encoded = encode_held_out(pairs, corpus, scorer.tokenizer)
    pooled = []
    linear = scorer.model.get_submodule(head)
    hook = linear.register_forward_hook(lambda module, inputs, out: pooled.append(inputs[0]))
    score_padded(scorer, encoded, pairs.kinds.size)
    hook.remove()
    positive = pairs.kinds.ravel()[np.argsort(-np.diff(encoded.starts), kind="stable")] == POSITIVE
    features = torch.cat([pooled[0], torch.ones(len(positive), 1)], dim=1).double()
    labels = torch.stack([torch.from_numpy(positive), torch.from_numpy(~positive)], 1).double()
    solved = torch.linalg.lstsq(features, labels).solution
    own = model.get_submodule(head)
    own.weight.data, own.bias.data = solved[:-1].T.float().contiguous(), solved[-1].float()
    model.save_pretrained(folder)
    result = evaluate_pairs(load_scorer(folder), corpus, parse_mixture("sop" if family == "albert" else "nsp"), 6)
    figures = next(iter(result["objectives"].values()))
    assert figures["all"]["auc"][0] == 1
    assert figures["all"]["accuracy"][0] == 1


def test_a_bert_that_names_its_masked_lm_is_scored_by_its_next_sentence_head(make_scored):
    """As the hub's bert-base-uncased does, whose file holds both heads."""
    folder, model = make_scored(BertForPreTraining)
    model.config.architectures = ["BertForMaskedLM"]
    model.config.save_pretrained(folder)
    assert type(load_scorer(folder).model) is BertForNextSentencePrediction


def test_each_objective_of_a_mixture(make_scored, corpus):
    folder, _ = make_scored(AutoModelForSequenceClassification, num_labels=1)
    scorer = load_scorer(folder)
    together = evaluate_pairs(scorer, corpus, parse_mixture("ssp:3+nsp"), 8)
    assert list(together["objectives"]) == ["ssp", "nsp"]
    assert together["tokenizer"] == "corpus"
    assert together["objectives"]["nsp"]["pairs"] == {"positive": 8, "hard": 0, "easy": 8}
    assert together["objectives"]["ssp"] == evaluate_pairs(scorer, corpus, parse_mixture("ssp"), 8)["objectives"]["ssp"]
    every = evaluate_pairs(scorer, corpus, parse_mixture("ssp"), 10**6)["objectives"]["ssp"]
    assert every["anchors"] == every["anchors_held_out"] > 8


def test_what_cannot_be_scored_is_one_line(make_scored, make_model, make_corpus, corpus, tiny_documents, tmp_path):
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
    refuses("more than the 512 positions", evaluate_pairs, scorer, corpus, parse_mixture("ssp"), 5, 600)
    nothing = Corpus(make_corpus(tiny_documents[:5]))
    refuses("held out", evaluate_pairs, scorer, nothing, parse_mixture("ssp"))
    refuses("^--max_length 8 is too short", evaluate_pairs, scorer, corpus, parse_mixture("ssp"), 5, 8)
    refuses("no head for pairs", load_scorer, electra_discriminator(make_scored))


def test_each_objective_has_its_own_length(make_scored, corpus):
    """Alone and in a mixture; sp's and psd's pairs are longer than ssp's."""
    scorer = load_scorer(make_scored(AutoModelForSequenceClassification, num_labels=1)[0])
    result = evaluate_pairs(scorer, corpus, parse_mixture("all"), 4)
    lengths = {name: OBJECTIVES[name].max_length for name in ("ssp", "sp", "psd")}
    assert {name: figures["max_length"] for name, figures in result["objectives"].items()} == lengths
    assert lengths["ssp"] == 128 < lengths["sp"]
    assert result["objectives"]["sp"] == evaluate_pairs(scorer, corpus, parse_mixture("sp"), 4)["objectives"]["sp"]
    assert all("tokens" in line for line in format_figures(result).splitlines() if "held-out anchors" in line)
    assert f"of up to {lengths['sp']} tokens" in format_figures(result)
    given = evaluate_pairs(scorer, corpus, parse_mixture("ssp+sp"), 4, 64)["objectives"]
    assert [figures["max_length"] for figures in given.values()] == [64, 64]


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
