import pytest
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import parse_sources
from objectives.rtd import mask_for_generator
from pretrain.batches import make_largest_batch, make_micro_batches
from pretrain.engine.layout import Layout
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.modeling.losses import LossWeights
from pretrain.modeling.pair_model import load_model
from pretrain.planning.corpora import mix
from pretrain.step import start_count_reduction, train_step, try_largest
from tests.pretrain.steps import PlainEngine, train_share

SIZE = 23


def gradient(model, stream, layout):
    """Loss sums and the gradient of global batch 2, averaged over the layout's ranks."""
    shares = [make_micro_batches(stream, layout, rank, 2) for rank in range(layout.world)]
    model.zero_grad()
    stats = sum(train_share(model, layout, shares, rank).sums for rank in range(layout.world))
    flat = torch.cat([p.grad.double().flatten() for p in model.parameters()]) / layout.world
    return stats, flat


def expect_equal_gradients(model, stream, micro, world):
    """Asserts that a batch cut into shares and micro-batches has the sums and gradient of the whole."""
    stats, whole = gradient(model, stream, Layout(SIZE, SIZE, 1))
    cut_stats, cut = gradient(model, stream, Layout(SIZE, micro, world))
    assert torch.allclose(stats, cut_stats, rtol=1e-6)
    assert (cut - whole).norm() / whole.norm() <= 1e-6


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("token_loss", ["mlm", "rtd"])
@pytest.mark.parametrize(("world", "micro"), [(1, 5), (2, 23), (3, 2), (30, 7)])
def test_loss_and_gradient_do_not_depend_on_the_cut(
    world, micro, token_loss, dropout, make_model, tiny_corpus, make_stream
):
    if token_loss == "rtd":
        model, _ = load_replaced_token_model(str(make_model("electra")), "1/2", "tied", seed=3)
    else:
        model, _ = load_model(str(make_model()), seed=3)
    model.train(dropout)
    stream = make_stream(tiny_corpus, masking=mask_for_generator(103, 30522) if token_loss == "rtd" else True)
    expect_equal_gradients(model, stream, micro, world)


@pytest.mark.parametrize(("world", "micro"), [(2, 4), (3, 2)])
def test_a_mixture_of_corpora_has_one_gradient_however_it_is_cut(
    world, micro, make_model, make_corpus, helpers, tiny_corpus, make_stream
):
    news = make_corpus(helpers.synthetic_documents(30, "news"))
    like = make_stream(tiny_corpus, masking=True)
    mixture = mix(parse_sources(["wiki=0.7,ssp", "news=0.3,sp"]), "psd").read_from(Corpus(tiny_corpus), Corpus(news))
    stream = PairStream(mixture, template=like.template, seed=1, masking=like.masking, max_length=48)
    assert set(stream.batch(2 * SIZE, SIZE).part.tolist()) == {0, 1}
    model, _ = load_model(str(make_model()), seed=3, objectives=mixture.names)
    expect_equal_gradients(model, stream, micro, world)


def test_the_weights_of_the_losses_reach_the_gradient(make_model, tiny_corpus, make_stream):
    model, _ = load_model(str(make_model()), seed=3)
    batch = make_stream(tiny_corpus, masking=True).batch(0, SIZE)
    global_batch = start_count_reduction([batch], model.losses)()
    train_step(PlainEngine(model, 1), global_batch, batch, Layout(SIZE, SIZE, 1), 0, 1, 0, LossWeights(mlm=0.0))
    assert all(p.grad is None or not p.grad.any() for p in model.mlm_head.cls.predictions.transform.parameters())
    assert model.classifier.classifier.weight.grad.any()


@pytest.mark.parametrize("layout", [Layout(16, 16, 1), Layout(38, 4, 2), Layout(40, 8, 1, padded=True)])
def test_no_batch_is_larger_than_the_largest(layout, tiny_corpus, make_stream):
    stream = make_stream(tiny_corpus, masking=True, max_length=40)
    largest = make_largest_batch(stream, layout.full_pairs)
    for number in range(1600 // layout.size):
        for batch in make_micro_batches(stream, layout, 0, number):
            assert batch.num_tokens <= largest.num_tokens
            assert len(batch.masked_labels) <= len(largest.masked_labels)


def test_too_little_memory_says_what_to_lower(make_model, tiny_corpus, make_stream, monkeypatch):
    error = RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory")
    model, _ = load_model(str(make_model()), seed=3)
    engine = PlainEngine(model, 1)
    monkeypatch.setattr(engine, "backward", lambda loss: (_ for _ in ()).throw(error))
    with pytest.raises(KinspanError, match="--micro_batch_size 4"):
        try_largest(engine, make_stream(tiny_corpus, masking=True), Layout(8, 4, 1))
