"""The gradient of the contrastive loss is that of one graph over the whole batch, however the batch is cut."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_template
from objectives import parse_mixture
from objectives.contrastive import as_contrastive
from pretrain.batches import make_micro_batches, to_tensors
from pretrain.engine import ranks
from pretrain.engine.layout import Layout
from pretrain.modeling.cpu.dropout import decide_dropout
from pretrain.modeling.losses import compute_mlm_loss
from pretrain.modeling.siamese import cached
from pretrain.modeling.siamese.losses import bar_known, compare_texts
from pretrain.modeling.siamese.model import load_siamese_model
from tests.pretrain.steps import train_share

SIZE = 11


@pytest.fixture
def make_texts(tiny_corpus, make_stream):
    """``make_texts("ssp", own_negatives=1)``: the stream of a bi-encoder."""
    like = make_stream(tiny_corpus, masking=True)

    def make(objective="ssp", own_negatives=0, masking=like.masking, max_length=32, corpus=tiny_corpus):
        corpus = Corpus(corpus)
        mixture = as_contrastive(parse_mixture(objective).read_from(corpus), own_negatives)
        template = read_template(load_tokenizer(corpus.tokenizer_folder), alone=True)
        return PairStream(mixture, template=template, seed=1, masking=masking, max_length=max_length, block_anchors=60)

    return make


class Paused(Exception):
    pass


class Exchange:
    """``sum_over_ranks`` of ranks that run one after another: each runs until it needs what the others have, and all of
    them begin again once that is known."""

    def __init__(self, monkeypatch):
        for module in (cached, ranks):
            monkeypatch.setattr(module, "sum_over_ranks", self.sum_over_ranks)

    def run(self, world, act):
        self.totals = []
        while True:
            done, self.given = [], []
            for rank in range(world):
                self.calls = 0
                try:
                    done.append(act(rank))
                except Paused:
                    continue
            if len(done) == world:
                return done
            self.totals.append(sum(self.given))

    def sum_over_ranks(self, values):
        self.calls += 1
        if self.calls <= len(self.totals):
            return self.totals[self.calls - 1].clone()
        self.given.append(values.detach().clone())
        raise Paused


def gradients(model, stream, layout, exchange):
    """Loss sums and each parameter's gradient of global batch 2, averaged over the layout's ranks."""
    shares = [make_micro_batches(stream, layout, rank, 2) for rank in range(layout.world)]

    def act(rank):
        model.zero_grad()
        result = train_share(model, layout, shares, rank)
        return result.sums, {name: p.grad.double().clone() for name, p in model.named_parameters()}

    results = exchange.run(layout.world, act)
    stats = sum(stats for stats, _ in results)
    return stats, {
        name: sum(gradients_of[name] for _, gradients_of in results) / layout.world for name in results[0][1]
    }


def plain_gradients(model, batch):
    """Of the mean losses, in one graph over the whole batch."""
    model.zero_grad()
    inputs = to_tensors(batch, torch.device("cpu"))
    with decide_dropout(1, 2, 0, batch.sequence_indices):
        hidden, embeddings = model.embed(inputs)
        vocabulary = model.mlm_head(hidden[inputs["masked_positions"]])
    mlm, _ = compute_mlm_loss(vocabulary, inputs["masked_labels"])
    every = slice(0, len(embeddings))
    groups = torch.from_numpy(batch.groups).unflatten(0, (-1, batch.sequences_per_pair))
    pair = compare_texts(embeddings, every, model.temperature, bar_known(groups, every)).losses
    (pair.mean() + mlm / max(batch.num_masked, 1)).backward()
    return float(pair.sum().detach()), {name: p.grad.double().clone() for name, p in model.named_parameters()}


def largest_difference(ours, reference):
    """Of any tensor, over its largest gradient. The bias of keys has none: adding to all scores changes no softmax, and
    what is there is rounding, which is measured by the bias of queries."""
    tops = {name: float(grad.abs().max()) for name, grad in reference.items()}
    tops |= {name: tops[name.replace("key", "query")] for name in tops if name.endswith("key.bias")}
    return max(
        float((ours[name] - expected).abs().max()) / tops[name] for name, expected in reference.items() if tops[name]
    )


@pytest.mark.parametrize(("own_negatives", "dropout"), [(0, True), (2, True), (0, False)])
def test_the_cached_gradient_is_the_plain_one(own_negatives, dropout, make_model, make_texts, monkeypatch):
    model, _ = load_siamese_model(str(make_model(initializer_range=0.2)), 3)
    model.train(dropout)
    stream, exchange = make_texts(own_negatives=own_negatives), Exchange(monkeypatch)
    loss, reference = plain_gradients(model, stream.batch(2 * SIZE, SIZE))
    monkeypatch.setattr(cached, "CHUNK", 3 * SIZE)  # a few rows at a time
    for world, micro in ((1, SIZE), (1, 4), (2, SIZE), (2, 2), (14, 1)):
        stats, ours = gradients(model, stream, Layout(SIZE, micro, world), exchange)
        sums = dict(zip(model.sum_names, stats.tolist(), strict=True))
        assert largest_difference(ours, reference) <= 1e-5, (world, micro)
        assert sums["ssp/pair_loss"] == pytest.approx(loss, rel=1e-5)
        assert sums["ssp/queries"] == SIZE


def test_sequences_know_their_document_and_texts_that_are_equal(make_texts):
    """Of each sequence, as its text was read: masking and the cut of batches change nothing."""
    stream = make_texts("psd", own_negatives=1)
    batch = stream.batch(0, 300)
    assert np.array_equal(batch.groups, np.concatenate([stream.batch(0, 77).groups, stream.batch(77, 223).groups]))
    plain = make_texts("psd", own_negatives=1, masking=None).batch(0, 300)
    assert np.array_equal(batch.groups, plain.groups)
    texts = [plain.input_ids[a:b].tobytes() for a, b in pairwise(plain.starts)]
    names = np.empty((300, 3), dtype=object)
    for rows in stream.pairs(0, 300):
        for k, spans in enumerate(rows.texts):
            places = [rows.block.locate(paragraph) for paragraph in spans.paragraph.tolist()]
            names[rows.index, k] = [shard.document_id(row) for shard, row, _ in places]
    for numbers, meanings in ((batch.groups[:, 0], names.ravel().tolist()), (batch.groups[:, 1], texts)):
        pairs = set(zip(numbers.tolist(), meanings, strict=True))
        assert len(pairs) == len(set(meanings)) == len(set(numbers.tolist())) > 20
