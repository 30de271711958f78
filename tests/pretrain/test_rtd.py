"""Replaced-token detection against transformers' own classes on padded batches, unpacked and unsharded."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraForSequenceClassification

from data_pipeline.errors import KinspanError
from objectives.mlm import ReplacedTokens
from pretrain.batches import to_tensors
from pretrain.rtd import sample
from pretrain.rtd_load import load_replaced_token_model

CPU = torch.device("cpu")
SHARINGS = ("none", "tied", "disentangled")
MASK, VOCABULARY = 103, 30522


@pytest.fixture
def stream(tiny_corpus, make_stream):
    return make_stream(tiny_corpus, masking=ReplacedTokens(MASK, VOCABULARY), max_length=48)


@pytest.fixture(scope="module")
def weights(make_model):
    """``weights(class, seed, **config)``: a folder of a small ELECTRA model's weights."""

    def make(model_class, seed=1, **options):
        folder = make_model("electra", **options)
        torch.manual_seed(seed)
        model_class(model_class.config_class.from_pretrained(folder)).save_pretrained(folder)
        return str(folder)

    return make


def table(model):
    """The discriminator's word table, whichever way it is shared."""
    words = model.classifier.electra.embeddings.word_embeddings
    return words.weight if isinstance(words, torch.nn.Embedding) else words.shared.detach() + words.delta


def plain(model):
    """transformers' own three models with this one's weights; their gradients reach nobody else."""
    generator = ElectraForMaskedLM._from_config(model.generator.config, attn_implementation="eager")
    generator.load_state_dict(model.generator.state_dict())
    classifier = ElectraForSequenceClassification._from_config(model.config, attn_implementation="eager")
    own = {k: v for k, v in model.classifier.state_dict().items() if "word_embeddings" not in k}
    classifier.load_state_dict(own | {"electra.embeddings.word_embeddings.weight": table(model).detach()})
    detector = ElectraForPreTraining._from_config(model.config, attn_implementation="eager")
    detector.electra = classifier.electra
    detector.discriminator_predictions.load_state_dict(model.discriminator_predictions.state_dict())
    return generator.eval(), classifier.eval(), detector.eval()


def padded(row, starts):
    pairs = torch.as_tensor(row).long().split(np.diff(starts).tolist())
    return torch.nn.utils.rnn.pad_sequence(list(pairs), batch_first=True)


def reference(models, batch):
    """The three mean losses: padded rows, noise by NumPy's searchsorted, transformers' own loss functions."""
    generator, classifier, detector = models
    attention = padded(np.ones(batch.num_tokens), batch.starts)
    real = attention.bool()
    types = padded(batch.token_type_ids, batch.starts)
    labels = np.full(batch.num_tokens, -100)
    labels[batch.masked_positions] = batch.masked_labels
    rows = {"attention_mask": attention, "token_type_ids": types}
    filled = generator(
        input_ids=padded(batch.input_ids, batch.starts),
        labels=padded(labels, batch.starts).masked_fill(~real, -100),
        **rows,
    )
    chances = filled.logits[real][batch.masked_positions].detach().double().softmax(-1).numpy()
    sampled = [np.searchsorted(np.cumsum(p), u, side="right") for p, u in zip(chances, batch.noise, strict=True)]
    original, ids = batch.input_ids.copy(), batch.input_ids.copy()
    original[batch.masked_positions], ids[batch.masked_positions] = batch.masked_labels, sampled
    rows["input_ids"] = padded(ids, batch.starts)
    detected = detector(labels=padded(ids != original, batch.starts), **rows)
    pair = classifier(labels=torch.from_numpy(batch.labels).float()[:, None], **rows)
    return filled.loss, detected.loss, pair.loss


@pytest.mark.parametrize("sharing", SHARINGS)
def test_losses_and_gradients_are_those_of_transformers_own_classes(sharing, weights, stream):
    folders = weights(ElectraForPreTraining), weights(ElectraForMaskedLM, 2, hidden_size=16, num_attention_heads=1)
    model, _ = load_replaced_token_model(*folders, sharing, seed=3)
    model.eval()  # no dropout
    batch = stream.batch(40, 21)
    scales = {"mlm_scale": 1 / len(batch.masked_labels), "rtd_scale": 50 / batch.num_tokens, "pair_scale": 1 / 21}
    loss, stats, _ = model(**to_tensors(batch, CPU), **scales)
    loss.backward()
    models = plain(model)
    mlm, rtd, pair = reference(models, batch)
    (mlm + 50 * rtd + pair).backward()
    sums = dict(zip(model.sum_names, stats.tolist(), strict=True))
    assert sums["mlm_loss"] / sums["mlm_tokens"] == pytest.approx(mlm.item(), rel=1e-6)
    assert sums["rtd_loss"] / sums["rtd_tokens"] == pytest.approx(rtd.item(), rel=1e-6)
    assert sums["ssp/pair_loss"] / 21 == pytest.approx(pair.item(), rel=1e-6)
    assert loss.item() == pytest.approx((mlm + 50 * rtd + pair).item(), rel=1e-6)
    _same_gradients(model, models, sharing)


def _same_gradients(model, models, sharing):
    generator, classifier, detector = models
    theirs = {f"generator.{k}": p.grad for k, p in generator.named_parameters()}
    theirs |= {f"classifier.{k}": p.grad for k, p in classifier.named_parameters()}
    theirs |= {
        f"discriminator_predictions.{k}": p.grad for k, p in detector.discriminator_predictions.named_parameters()
    }
    words = "classifier.electra.embeddings.word_embeddings"
    if sharing == "tied":  # one Parameter has both gradients
        for name in [n for n in theirs if n.startswith("classifier.electra.embeddings.")]:
            theirs["generator" + name.removeprefix("classifier")] += theirs.pop(name)
    if sharing == "disentangled":  # the discriminator's loss reaches the difference alone
        theirs[f"{words}.delta"] = theirs.pop(f"{words}.weight")
    ours = {k: p.grad for k, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, grad in ours.items():
        assert (grad - theirs[name]).norm() <= 1e-5 * max(theirs[name].norm(), 1e-2), name
