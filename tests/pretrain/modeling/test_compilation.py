"""Compiled encoders against the same ones as they are, and what a GPU compiles, compiled for a processor."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.core.errors import KinspanError
from pretrain.batches import make_largest_batch, to_tensors
from pretrain.modeling import compilation, losses
from pretrain.modeling.compilation import check_can_compile, compile_encoders
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.packing import Packing
from pretrain.modeling.pair_model import load_model
from tests.flash_on_cpu import flash_on_cpu


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    """Nobody knows the bounds of the pairs, so that attention is padded in fp32, and flash attention in bf16."""
    make = Packing.of
    monkeypatch.setattr(Packing, "of", staticmethod(lambda *given: replace(make(*given), bounds=None)))
    for name in ("_sum_log_likelihood", "_overwrite_by_gradient"):  # compiled in place
        monkeypatch.setattr(losses, name, getattr(losses, name))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with flash_on_cpu():
        yield


GRAPHS = 3  # the encoder's, and the masked-LM loss's forward and backward
BY_LAYER = {3, 4, 5, 6}  # of the first layer, of windows and of others, and for short batches


def make_inputs(stream):
    """Batches of different shapes; the first has no padding, as the largest batch of a run mostly has none."""
    batches = [make_largest_batch(stream, 8), *(stream.batch(*b) for b in ((0, 4), (9, 7), (30, 5), (40, 12)))]
    return [to_tensors(batch, torch.device("cpu")) for batch in batches]


@pytest.mark.slow
@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_compiled_encoder_has_the_same_few_graphs_for_batches_of_all_shapes(
    family, dtype, close, make_model, tiny_corpus, make_stream
):
    model, _ = load_model(str(make_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)), seed=3)
    model.to(dtype)
    inputs = make_inputs(make_stream(tiny_corpus, masking=True))

    def compute():
        losses_of = [model(**batch, scales={"mlm": 1.0, "pair": 1.0})[0] for batch in inputs]
        model.zero_grad()
        sum(losses_of).backward()
        return torch.stack(losses_of), torch.cat([p.grad.flatten() for p in model.parameters()]).float()

    names, plain = list(model.state_dict()), compute()
    compile_encoders(model.encoders, backend="eager")
    for before, after in zip(plain, compute(), strict=True):
        assert (before - after).norm() / before.norm() <= close
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] in (BY_LAYER if family == "modernbert" else {GRAPHS})
    assert not torch._dynamo.utils.counters["graph_break"]
    assert list(model.state_dict()) == names


@pytest.mark.slow
@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_flash_attention_with_dropout_is_compiled_as_one_graph(backend, make_model, tiny_corpus, make_stream):
    """Of the encoder with its backward pass, as a GPU runs it."""
    model, _ = load_model(str(make_model("roberta")), seed=3)
    model.bfloat16()
    compile_encoders(model.encoders, backend=backend)
    for batch in make_inputs(make_stream(tiny_corpus, masking=True)):
        loss, *_ = model(**batch, scales={"mlm": 1.0, "pair": 1.0})
        loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == GRAPHS
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("lacks", "family", "stage"),
    [("gpu", "bert", 1), ("", "mpnet", 1), ("", "bert", 3), ("compiler", "bert", 1), ("triton", "bert", 1)],
)
def test_what_cannot_be_compiled_is_refused(lacks, family, stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: lacks != "gpu")
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None if lacks == "compiler" else name)
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name: None if lacks == "triton" else name)
    with pytest.raises(KinspanError, match="--compile"):
        check_can_compile(FAMILIES[family], stage)
