"""Replaced-token detection against transformers' own classes on padded batches, unpacked and unsharded."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraForSequenceClassification

from benchmarks.peers.case import pad_rows, split_rows
from data_pipeline.core.errors import KinspanError
from objectives.rtd import mask_for_generator
from pretrain.batches import to_tensors
from pretrain.modeling.electra import load_replaced_token_model, parse_size_factor, sample, scale_config

CPU = torch.device("cpu")
MASK, VOCABULARY = 103, 30522


@pytest.fixture
def stream(tiny_corpus, make_stream):
    return make_stream(tiny_corpus, masking=mask_for_generator(MASK, VOCABULARY), max_length=48)


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
    rest = {k: v for k, v in model.classifier.state_dict().items() if "word_embeddings" not in k}
    classifier.load_state_dict(rest | {"electra.embeddings.word_embeddings.weight": table(model).detach()})
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
    rows = pad_rows(split_rows(batch), pad_id=0)
    labels, pair_labels = rows.pop("labels"), rows.pop("pair_labels")
    filled, real = generator(labels=labels, **rows), rows["attention_mask"].bool()
    chances = filled.logits[real][batch.masked_positions].detach().double().softmax(-1).numpy()
    sampled = [np.searchsorted(np.cumsum(p), u, side="right") for p, u in zip(chances, batch.noise, strict=True)]
    original, ids = batch.input_ids.copy(), batch.input_ids.copy()
    original[batch.masked_positions], ids[batch.masked_positions] = batch.masked_labels, sampled
    rows["input_ids"] = padded(ids, batch.starts)
    detected = detector(labels=padded(ids != original, batch.starts), **rows)
    pair = classifier(labels=pair_labels[:, None], **rows)
    return filled.loss, detected.loss, pair.loss


@pytest.mark.parametrize("sharing", ["none", "tied", "disentangled"])
def test_losses_and_gradients_are_those_of_transformers_own_classes(sharing, weights, stream):
    folders = weights(ElectraForPreTraining), weights(ElectraForMaskedLM, 2, hidden_size=16, num_attention_heads=1)
    model, _ = load_replaced_token_model(*folders, sharing, seed=3)
    model.eval()  # no dropout
    batch = stream.batch(40, 21)
    with torch.no_grad():  # some samples are what was masked, and so are not replaced
        model.generator.generator_lm_head.bias[np.bincount(batch.masked_labels).argmax()] += 9
    scales = {"mlm": 1 / len(batch.masked_labels), "rtd": 50 / batch.num_tokens, "pair": 1 / 21}
    loss, stats, _ = model(**to_tensors(batch, CPU), scales=scales)
    loss.backward()
    generator, classifier, detector = models = plain(model)
    mlm, rtd, pair = reference(models, batch)
    (mlm + 50 * rtd + pair).backward()
    sums = dict(zip(model.sum_names, stats.tolist(), strict=True))
    assert sums["mlm_loss"] / sums["mlm_tokens"] == pytest.approx(mlm.item(), rel=1e-6)
    assert sums["rtd_loss"] / sums["rtd_tokens"] == pytest.approx(rtd.item(), rel=1e-6)
    assert sums["ssp/pair_loss"] / 21 == pytest.approx(pair.item(), rel=1e-6)
    assert loss.item() == pytest.approx((mlm + 50 * rtd + pair).item(), rel=1e-6)
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


@pytest.mark.parametrize("vocabulary", [7, 256, 1000])
def test_samples_follow_the_softmax(vocabulary):
    torch.manual_seed(0)
    logits = 2 * torch.randn(vocabulary)
    logits[[0, vocabulary // 2, vocabulary - 1]] = float("-inf")  # never sampled
    count = 200_000
    noise = torch.from_numpy(np.random.default_rng(0).random(count))
    drawn = torch.cat([sample(logits.expand(len(part), -1), part) for part in noise.split(20_000)])
    expected = logits.double().softmax(0).numpy() * count
    observed = np.bincount(drawn.numpy(), minlength=vocabulary)
    assert not observed[expected == 0].any()
    often = expected >= 5  # what chi-square needs; the others count as one
    observed, expected = (np.append(x[often], x[~often].sum()) for x in (observed, expected))
    present = expected > 0
    assert chisquare(observed[present], expected[present]).pvalue > 1e-3


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-53])
def test_noise_at_its_ends_gives_the_first_and_last_possible_id(noise):
    logits = torch.zeros(1, 600).double()
    logits[0, :3] = logits[0, -3:] = float("-inf")
    assert sample(logits, torch.tensor([noise], dtype=torch.float64)).item() == (3 if noise == 0 else 596)


def test_a_batch_with_nothing_masked_runs_everything(make_model, tiny_corpus, make_stream):
    model, _ = load_replaced_token_model(str(make_model("electra")), "1/2", "tied", seed=3)
    nothing = make_stream(tiny_corpus, masking=mask_for_generator(MASK, VOCABULARY, 1e-9)).batch(0, 4)
    assert not len(nothing.masked_labels)
    loss, sums, _ = model(**to_tensors(nothing, CPU), scales={"mlm": 1.0, "rtd": 1.0, "pair": 1.0})
    loss.backward()
    assert torch.isfinite(sums).all()
    assert all(p.grad is not None for p in model.parameters())


def test_a_generators_size_is_the_papers():
    """Clark et al., appendix A: ELECTRA-Base, 768 wide with 12 heads, has a generator a third of that."""
    base = ElectraConfig(embedding_size=768, hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    small = scale_config(base, parse_size_factor("1/3"))
    assert (small.hidden_size, small.num_attention_heads, small.intermediate_size) == (256, 4, 1024)
    assert (small.embedding_size, small.num_hidden_layers) == (768, base.num_hidden_layers)


@pytest.mark.parametrize("text", ["0", "-1/3", "1.5", "1/0"])
def test_sizes_that_cannot_be_meant_are_refused(text):
    with pytest.raises(KinspanError, match="--generator"):
        parse_size_factor(text)


@pytest.mark.parametrize("sharing", ["tied", "disentangled"])
def test_fresh_embeddings_give_way_to_loaded_ones(sharing, weights, make_model):
    discriminator, generator = weights(ElectraForPreTraining), weights(ElectraForMaskedLM, 2)
    for model_class, folders in (
        (ElectraForPreTraining, (discriminator, "1/2")),
        (ElectraForMaskedLM, (str(make_model("electra")), generator)),
    ):
        loaded = model_class.from_pretrained(next(f for f in folders if f in (discriminator, generator)))
        words = loaded.electra.embeddings.word_embeddings.weight
        model, _ = load_replaced_token_model(*folders, sharing, seed=3)
        assert torch.equal(model.generator.electra.embeddings.word_embeddings.weight, words)
        assert torch.equal(table(model), words)


@pytest.mark.parametrize("sharing", ["tied", "disentangled"])
def test_embeddings_of_two_sizes_cannot_be_shared(sharing, weights):
    folders = weights(ElectraForPreTraining), weights(ElectraForMaskedLM, 2, embedding_size=20)
    with pytest.raises(KinspanError, match=f"--embedding_sharing {sharing}"):
        load_replaced_token_model(*folders, sharing, seed=3)
    load_replaced_token_model(*folders, "none", seed=3)


def test_a_generator_of_another_vocabulary_or_family_is_refused(weights, make_model):
    folder = str(make_model("electra"))
    for generator in (weights(ElectraForMaskedLM, 2, vocab_size=30000), str(make_model("bert")), "/absent"):
        with pytest.raises(KinspanError, match=generator):
            load_replaced_token_model(folder, generator, "none", seed=3)
