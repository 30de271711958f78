"""The pair model against transformers' own classes, the refusals of its loading, and its head by itself."""

import json

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForMaskedLM,
)

from benchmarks.peers.case import pad_rows, split_rows
from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import fold_two_labels, load_model, redraw_head
from tests.pretrain.conftest import SMALL, make_config

CPU = torch.device("cpu")


def unpacked(model, batch):
    """The pair and vocabulary logits of transformers' own classes, on the same pairs in padded rows."""
    padded, names = pad_rows(split_rows(batch), model.config.pad_token_id), ["input_ids", "attention_mask"]
    if model.config.model_type not in ("distilbert", "mpnet", "modernbert"):
        names.append("token_type_ids")
    inputs = {name: padded[name] for name in names}
    classifier = AutoModelForSequenceClassification.from_config(model.config, attn_implementation="eager")
    classifier.load_state_dict(model.classifier.state_dict())
    masked_lm = AutoModelForMaskedLM.from_config(model.config, attn_implementation="eager")
    base = {k: v for k, v in classifier.base_model.state_dict().items() if "pooler" not in k}
    masked_lm.base_model.load_state_dict(base)
    model.family.mlm_head_of(masked_lm).load_state_dict(model.mlm_head.state_dict())
    with torch.no_grad():
        pair = classifier.eval()(**inputs).logits[:, 0]
        vocabulary = masked_lm.eval()(**inputs).logits
    rows = vocabulary[inputs["attention_mask"].bool()]
    return pair, rows[torch.from_numpy(batch.masked_positions)]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_unpacked(family, make_model, tiny_corpus, make_stream):
    folder = make_model(family, initializer_range=0.2)  # at 0.02 hardly anything shows in a logit
    model, _ = load_model(str(folder), seed=3)
    batch = make_stream(tiny_corpus, masking=True).batch(7, 33)
    model.eval()
    with torch.no_grad():
        packed = model.logits(to_tensors(batch, CPU))
    for ours, theirs in zip(packed, unpacked(model, batch), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5), (ours - theirs).abs().max()


def test_losses_and_gradients_are_those_of_transformers_own_classes(make_model, tiny_corpus, make_stream):
    """RoBERTa, masked language modelling and pairs, against padded rows with transformers' own loss functions."""
    model, _ = load_model(str(make_model("roberta")), seed=3)
    model.eval()  # no dropout
    batch = make_stream(tiny_corpus, masking=True).batch(40, 21)
    scales = {"mlm": 1 / len(batch.masked_labels), "pair": 1 / 21}
    loss, stats, _ = model(**to_tensors(batch, CPU), scales=scales)
    loss.backward()

    classifier = AutoModelForSequenceClassification.from_config(model.config, attn_implementation="eager").eval()
    classifier.load_state_dict(model.classifier.state_dict())
    masked_lm = AutoModelForMaskedLM.from_config(model.config, attn_implementation="eager").eval()
    masked_lm.roberta = classifier.roberta
    masked_lm.lm_head.load_state_dict(model.mlm_head.lm_head.state_dict())
    masked_lm.lm_head.decoder.weight = classifier.get_input_embeddings().weight
    rows = pad_rows(split_rows(batch), model.config.pad_token_id)
    labels, pair_labels = rows.pop("labels"), rows.pop("pair_labels")
    mlm = masked_lm(labels=labels, **rows).loss
    pair = classifier(labels=pair_labels[:, None], **rows).loss
    (mlm + pair).backward()

    sums = dict(zip(model.sum_names, stats.tolist(), strict=True))
    assert sums["mlm_loss"] / sums["mlm_tokens"] == pytest.approx(mlm.item(), rel=1e-6)
    assert sums["ssp/pair_loss"] / 21 == pytest.approx(pair.item(), rel=1e-6)
    theirs = {f"classifier.{k}": p.grad for k, p in classifier.named_parameters()}
    theirs |= {f"mlm_head.lm_head.{k}": p.grad for k, p in masked_lm.lm_head.named_parameters()}
    for name, parameter in model.named_parameters():
        assert (parameter.grad - theirs[name]).norm() <= 1e-5 * max(theirs[name].norm(), 1e-2), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_gives_the_gradient_that_it_gives_alone(family, make_model, tiny_corpus, make_stream):
    """Of very unequal pairs: what is padding to one is none to the other."""
    folder = make_model(family, initializer_range=0.2)
    model, _ = load_model(str(folder), seed=3)
    stream = make_stream(tiny_corpus, masking=True)
    lengths = np.diff(stream.batch(0, 200).starts)
    first = int(np.abs(np.diff(lengths)).argmax())

    def gradient(*batches):
        model.eval().zero_grad()
        for batch in batches:
            pair, mlm = model.logits(to_tensors(batch, CPU))
            (pair.sum() + mlm.logsumexp(-1).sum()).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    together = gradient(stream.batch(first, 2))
    apart = gradient(stream.batch(first, 1), stream.batch(first + 1, 1))
    for name, value in together.items():
        assert torch.allclose(value, apart[name], rtol=1e-3, atol=1e-6 + 1e-3 * apart[name].abs().max()), name


def test_a_model_of_a_config_alone_starts_fresh_by_the_seed_and_with_dropout(make_model):
    folder = str(make_model())
    (first, notes), (two, _), (third, _) = (load_model(folder, seed) for seed in (3, 3, 4))
    assert notes == [note for note in notes if "from scratch" in note] != []
    assert all(module.training for module in first.modules())
    assert torch.sigmoid(first.classifier.classifier.bias).item() == pytest.approx(0.2)  # the share of positives
    assert first.mlm_head.cls.predictions.decoder.weight is first.classifier.get_input_embeddings().weight
    same, differs = (
        [torch.equal(tensor, model.state_dict()[name]) for name, tensor in first.state_dict().items()]
        for model in (two, third)
    )
    assert all(same)
    assert not all(differs)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_another_tasks_head_is_left_and_the_encoder_loaded(file, make_model):
    folder = make_model("distilbert", num_labels=35)
    tagger = AutoModelForTokenClassification.from_config(AutoConfig.from_pretrained(folder))
    tagger.save_pretrained(folder)
    if file == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
        torch.save(tagger.state_dict(), folder / file)
    model, notes = load_model(str(folder), seed=1)
    assert sum("pair head starts fresh" in note for note in notes) == 1
    assert model.classifier.classifier.weight.shape == (1, SMALL["hidden_size"])
    for name, tensor in tagger.distilbert.state_dict().items():
        assert torch.equal(model.classifier.distilbert.state_dict()[name], tensor), name


def poison_weights(make_model):
    folder = make_model()
    model = BertForMaskedLM(AutoConfig.from_pretrained(folder))
    model.bert.encoder.layer[1].output.dense.weight.data[3, 4] = float("nan")
    model.save_pretrained(str(folder))
    return folder


def lose_a_layer(make_model):
    folder = make_model("modernbert")
    model, _ = load_model(str(folder), seed=1)
    kept = {k: v for k, v in model.classifier.state_dict().items() if "layers.3" not in k}
    model.classifier.save_pretrained(str(folder), state_dict=kept)
    return folder


def widen_the_config(make_model):
    folder = poison_weights(make_model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 2 * config["intermediate_size"]}))
    return folder


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda make_model: make_model() / "absent", ""),
        *[(poison_weights, "bert.encoder.layer.1.output.dense.weight"), (lose_a_layer, "model.layers.3")],
        (widen_the_config, "intermediate.dense"),
        (lambda make_model: make_model(num_attention_heads=5), "config.json"),
        (lambda make_model: make_model(hidden_act="glue"), "config.json"),
        (lambda make_model: make_model("deberta-v2", legacy=False), "legacy"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(make, named, make_model):
    folder = make(make_model)
    with pytest.raises(KinspanError, match=f"{folder}.*{named}") as refused:
        load_model(str(folder), seed=1)
    assert "\n" not in str(refused.value)


def build_trained(family, **options):
    """A small classifier all of whose parameters differ from what any initialisation draws."""
    config = make_config(family, **{"vocab_size": 99, "num_labels": 1} | options)
    if family == "modernbert":
        config.vocab_size = 103  # it has its own special tokens
    classifier = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.normal_(0.5, 0.1)
            parameter._is_hf_initialized = True  # as from_pretrained leaves what it has loaded
    return classifier


@pytest.mark.parametrize("family", FAMILIES)
def test_all_above_the_encoder_is_redrawn_and_the_encoder_kept(family):
    """The encoder is what the hidden states depend on, which their gradient tells for every family alike."""
    classifier = build_trained(family)
    classifier.base_model(input_ids=torch.arange(6, 14)[None]).last_hidden_state.pow(2).sum().backward()
    encoder = {name for name, parameter in classifier.named_parameters() if parameter.grad is not None}
    before = {name: parameter.detach().clone() for name, parameter in classifier.named_parameters()}
    redraw_head(classifier, seed=3)
    redrawn = {name for name, parameter in classifier.named_parameters() if not torch.equal(parameter, before[name])}
    assert len(redrawn) >= 2
    assert redrawn == before.keys() - encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_two_labels_become_their_difference(family):
    classifier = build_trained(family, num_labels=2)
    states = torch.randn(5, SMALL["hidden_size"])
    inputs = {"input_ids": torch.arange(6, 14).expand(3, 8).clone()}
    inputs["input_ids"][:, 1] = torch.tensor([20, 40, 60])
    with torch.no_grad():
        before = classifier(**inputs).logits
        fold_two_labels(classifier)
        after = classifier(**inputs).logits
        assert FAMILIES[family].pair_logits(classifier, states).shape == (5,)
    assert after.shape == (3, 1)
    torch.testing.assert_close(after[:, 0], before[:, 1] - before[:, 0], atol=1e-5, rtol=1e-5)
    assert classifier.config.num_labels == 1
