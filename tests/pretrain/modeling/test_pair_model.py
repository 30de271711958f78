import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    GPT2Config,
)

from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.batches import to_tensors
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_model
from tests.synthetic import short_tokenizer

CPU = torch.device("cpu")


def unpacked(model, batch):
    """The pair and vocabulary logits of transformers' own classes, on the same pairs in padded rows."""
    lengths = torch.from_numpy(batch.starts).diff()
    ids = torch.from_numpy(batch.input_ids).long().split(lengths.tolist())
    types = torch.from_numpy(batch.token_type_ids).long().split(lengths.tolist())
    pad = torch.nn.utils.rnn.pad_sequence
    filler = model.config.pad_token_id
    inputs = {
        "input_ids": pad(list(ids), batch_first=True, padding_value=filler),
        "attention_mask": pad([torch.ones(n, dtype=torch.long) for n in lengths.tolist()], batch_first=True),
    }
    if model.config.model_type not in ("mpnet", "modernbert"):
        inputs["token_type_ids"] = pad(list(types), batch_first=True)
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
    lengths = np.diff(batch.starts).tolist()
    labels = np.full(batch.num_tokens, -100)
    labels[batch.masked_positions] = batch.masked_labels
    ids, types, labels, mask = (
        pad_sequence(list(torch.from_numpy(row).long().split(lengths)), batch_first=True, padding_value=filler)
        for row, filler in (
            (batch.input_ids, model.config.pad_token_id),
            (batch.token_type_ids, 0),
            (labels, -100),
            (np.ones(batch.num_tokens), 0),
        )
    )
    rows = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    mlm = masked_lm(labels=labels, **rows).loss
    pair = classifier(labels=torch.from_numpy(batch.labels).float()[:, None], **rows).loss
    (mlm + pair).backward()

    sums = dict(zip(model.sum_names, stats.tolist(), strict=True))
    assert sums["mlm_loss"] / sums["mlm_tokens"] == pytest.approx(mlm.item(), rel=1e-6)
    assert sums["ssp/pair_loss"] / 21 == pytest.approx(pair.item(), rel=1e-6)
    theirs = {f"classifier.{k}": p.grad for k, p in classifier.named_parameters()}
    theirs |= {f"mlm_head.lm_head.{k}": p.grad for k, p in masked_lm.lm_head.named_parameters()}
    for name, parameter in model.named_parameters():
        assert (parameter.grad - theirs[name]).norm() <= 1e-5 * max(theirs[name].norm(), 1e-2), name


def test_packed_equals_unpacked_with_real_weights(tiny_corpus, make_stream):
    model, notes = load_model(default_model(), seed=3)
    batch = make_stream(tiny_corpus, masking=True).batch(0, 10)
    model.eval()
    with torch.no_grad():
        packed = model.logits(to_tensors(batch, CPU))
    for ours, theirs in zip(packed, unpacked(model, batch), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert any("pair head" in note and note.endswith("in all-MiniLM-L6-v2)") for note in notes)


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


@pytest.mark.parametrize("source", ["weights", "config"])
def test_dropout_is_on_when_training_starts(source, make_model):
    model, _ = load_model(default_model() if source == "weights" else str(make_model()), seed=3)
    assert all(module.training for module in model.modules())


def test_vocabulary_matrix_is_the_embedding(make_model):
    model, _ = load_model(str(make_model()), seed=3)
    assert model.mlm_head.cls.predictions.decoder.weight is model.classifier.get_input_embeddings().weight


def test_fresh_weights_depend_on_the_seed_alone(make_model):
    folder = str(make_model())
    one, two, other = (load_model(folder, seed)[0].state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)


def test_a_config_alone_starts_from_scratch_and_says_so(make_model):
    _, notes = load_model(str(make_model()), seed=3)
    assert notes == [note for note in notes if "from scratch" in note] != []


def test_no_encoder_is_refused(tmp_path: Path):
    load_tokenizer(short_tokenizer()).save_pretrained(str(tmp_path))
    GPT2Config(n_layer=1, n_head=2, n_embd=8).save_pretrained(str(tmp_path))
    with pytest.raises(KinspanError, match="gpt2, not an encoder"):
        load_model(str(tmp_path), seed=1)


def test_a_missing_model_is_one_line(tmp_path: Path):
    with pytest.raises(KinspanError, match="no model at") as caught:
        load_model(str(tmp_path / "absent"), seed=1)
    assert "\n" not in str(caught.value)


def test_damaged_weights_are_one_line(make_model):
    folder = make_model()
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(KinspanError, match="cannot be loaded") as caught:
        load_model(str(folder), seed=1)
    assert "\n" not in str(caught.value)


def test_weights_of_another_config_are_named_with_both_shapes(make_base):
    folder = make_base()
    config = json.loads((folder / "config.json").read_text())
    width = config["intermediate_size"]
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 2 * width}))
    with pytest.raises(KinspanError, match=rf"has the shape \[{width}.* by its config.json \[{2 * width}") as caught:
        load_model(str(folder), seed=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"), [({"num_attention_heads": 5}, "not a multiple"), ({"hidden_act": "glue"}, "glue")]
)
def test_a_config_that_no_model_can_be_built_of_is_one_line(make_model, config, says):
    with pytest.raises(KinspanError, match=f"no model can be built of its config.json: .*{says}"):
        load_model(str(make_model(**config)), seed=1)


def test_weights_that_are_not_finite_are_named(make_model):
    folder = make_model()
    model = BertForMaskedLM(AutoConfig.from_pretrained(folder))
    model.bert.encoder.layer[1].output.dense.weight.data[3, 4] = float("nan")
    model.save_pretrained(str(folder))
    with pytest.raises(
        KinspanError, match=r"not finite, in bert.encoder.layer.1.output.dense.weight: use other weights"
    ):
        load_model(str(folder), seed=1)
