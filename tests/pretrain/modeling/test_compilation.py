"""Compiled encoders against the same ones as they are. Dynamo traces them; no code is generated, which takes a GPU."""

import pytest
import torch

from data_pipeline.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling import compilation
from pretrain.modeling.compilation import check_can_compile, compile_encoders
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.packing import Packing
from pretrain.modeling.pair_model import load_model

CPU = torch.device("cpu")


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    """Nobody knows the bounds of the pairs, so that attention is padded, as in fp32 there."""
    make = Packing.of

    def hide_bounds(*arguments):
        packing = make(*arguments)
        return Packing(
            packing.starts, packing.sequence, packing.position, packing.max_length, packing.padding, bounds=None
        )

    monkeypatch.setattr(Packing, "of", staticmethod(hide_bounds))


@pytest.mark.slow
@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_compiled_encoder_is_one_graph_for_batches_of_all_shapes(family, make_model, tiny_corpus, make_stream):
    model, _ = load_model(str(make_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)), seed=3)
    stream = make_stream(tiny_corpus, masking=True)
    inputs = [to_tensors(stream.batch(first, count), CPU) for first, count in ((0, 4), (9, 7), (30, 5), (40, 12))]

    def compute():
        losses = [model(**batch, scales={"mlm": 1.0, "pair": 1.0})[0] for batch in inputs]
        model.zero_grad()
        sum(losses).backward()
        return torch.stack(losses), torch.cat([p.grad.flatten() for p in model.parameters()])

    names, plain = list(model.state_dict()), compute()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compile_encoders(model, backend="eager")
    for before, after in zip(plain, compute(), strict=True):
        assert (before - after).norm() / before.norm() <= 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(
    ("lacks", "family", "stage", "text"),
    [
        ("gpu", "bert", 1, "there is none here"),
        ("", "mpnet", 1, "bias by relative position"),
        ("", "bert", 3, "zero2.json"),
        ("compiler", "bert", 1, "there is no own-cc here"),
        ("triton", "bert", 1, "needs the package triton"),
    ],
)
def test_what_cannot_be_compiled_is_refused(lacks, family, stage, text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: lacks != "gpu")
    monkeypatch.setenv("CC", "own-cc")
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None if lacks == "compiler" else name)
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name: None if lacks == "triton" else name)
    with pytest.raises(KinspanError, match=text):
        check_can_compile(FAMILIES[family], stage)
