"""What the tests of training share: an engine and its updates in this process, requests to stop, collectives."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data_pipeline.sampling.batch import Batch
from pretrain.batches import make_micro_batches
from pretrain.config import PretrainConfig
from pretrain.engine import ranks
from pretrain.engine.engine import build_engine
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.engine.stop import Stopped, StopRequest, interrupts
from pretrain.modeling.losses import PAPER_WEIGHTS, LossWeights
from pretrain.setup import Setup, begin, set_up
from pretrain.step import GlobalBatch, start_count_reduction, train_step


class PlainEngine:
    """DeepSpeed's arithmetic without DeepSpeed: divides by the micro-steps, gradients add up."""

    device = torch.device("cpu")
    optimizer = SimpleNamespace(overflow=False, param_groups=[], state={}, zero_grad=lambda: None)

    def __init__(self, model, accumulation):
        self.module, self.accumulation, self.micro_steps = model, accumulation, 0

    def __call__(self, **inputs):
        return self.module(**inputs)

    def backward(self, loss):
        (loss / self.accumulation).backward()

    def step(self):
        self.micro_steps += 1

    def zero_grad(self):
        self.module.zero_grad()

    def eval(self):
        self.module.eval()

    def train(self):
        self.module.train()

    def zero_optimization(self):
        return True

    def get_global_grad_norm(self):
        return None

    def set_gradient_accumulation_boundary(self, _):
        pass


def make_run(corpus: Path | str, model: Path | str, folder: Path, /, **settings: Any) -> PretrainConfig:
    """The settings of a small run in fp32, which writes to ``folder``."""
    places = {"corpus": str(corpus), "model": str(model), "output_dir": str(folder), "precision": "fp32"}
    small = {"global_batch_size": 10, "micro_batch_size": 4, "max_length": 48, "learning_rate": 1e-3}
    return PretrainConfig(**places | small | settings)


def set_up_alone(config: PretrainConfig) -> Setup:
    """The set-up of a run of one rank."""
    begin(config)
    return set_up(config)


def start_engine(config: PretrainConfig) -> tuple[Setup, Any]:
    """The set-up of a run, and its engine."""
    setup = set_up_alone(config)
    return setup, build_engine(setup.model, setup.deepspeed_settings, config.learning_rate, config.weight_decay)


def take_step(setup: Setup, engine: Any, step: int, weights: LossWeights = PAPER_WEIGHTS) -> Outcome:
    """One update of this rank, as the training loop makes it."""
    batches = make_micro_batches(setup.train_stream, setup.layout, setup.rank, step)
    return train_step(
        engine,
        global_batch=start_count_reduction(batches, engine.module.losses)(),
        filler=setup.train_stream.batch(0, 1),
        layout=setup.layout,
        rank=setup.rank,
        seed=1,
        step=step,
        weights=weights,
    )


def train_share(model: Any, layout: Layout, shares: list[list[Batch | None]], rank: int) -> Outcome:
    """A rank's passes over its share of global batch 2, without DeepSpeed; ``shares``: the batches of each rank."""
    every = [batch for share in shares for batch in share if batch]
    counts = {name: sum(getattr(b, name) for b in every) for name in ("num_masked", "num_tokens", "num_pairs")}
    batches = GlobalBatch(shares[rank], counts, stop=False), every[0], layout, rank
    return train_step(PlainEngine(model, layout.accumulation), *batches, seed=1, step=2)


def read_weights(folder: Path | str, step: int) -> dict[str, torch.Tensor]:
    """The weights of a run's checkpoint."""
    return load_file(str(Path(folder) / f"checkpoints/step-{step:08d}/weights.safetensors"))


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def read_lines(folder: Path | str, split: str) -> list[dict[str, Any]]:
    """The lines of a split in a run's log."""
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


def read_log(folder: Path | str, split: str, *names: str) -> list[list[Any]]:
    """These figures in each of those lines."""
    return [[line[name] for name in names] for line in read_lines(folder, split)]


def expect_equal_runs(folder: Path | str, whole: Path | str, step: int) -> None:
    """Asserts that two runs logged the same losses and ended with the same weights, bit for bit."""
    for split in ("train", "validation"):
        assert read_log(folder, split, "step", "loss") == read_log(whole, split, "step", "loss")
    assert same(read_weights(folder, step), read_weights(whole, step))


def read_curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Steps and values of a curve of a run, as TensorBoard shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, round(event.value, 3)) for event in board.Scalars(tag)]


@contextmanager
def stopped_in_step(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """A SIGTERM while that step of the block's run, the first being 1, is under way: the block ends with status 75."""
    calls = []

    def wanted(request: StopRequest) -> bool:
        if not interrupts:  # a validation asks, too
            calls.append(request)
        if len(calls) == step:
            request.ask("SIGTERM")
        return request.reason is not None

    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "wanted", wanted)
        with pytest.raises(Stopped) as caught:
            yield
    assert caught.value.code == 75


def record_collectives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which each collective on the host is added from now on, whether it is begun or waited for.

    The group must have been made. It has one rank here; what is called on it is what more ranks call.
    """
    events: list[str] = []

    def record(name: str) -> None:
        plain = getattr(torch.distributed, name)

        def call(*values: Any, **named: Any) -> Any:
            if named.get("group") is ranks.process_group("control"):
                events.append(f"{name} begun" if named.get("async_op") else f"{name} waited for")
            return plain(*values, **named)

        monkeypatch.setattr(torch.distributed, name, call)

    monkeypatch.setattr(ranks, "is_distributed", lambda: True)
    for name in ("all_reduce", "barrier", "all_gather_object", "broadcast_object_list"):
        record(name)
    return events
