"""Whole runs that train adapters: what checkpoints hold, resuming, ranks, releases, refusals."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.checkpoints.reader import load_checkpoint
from pretrain.modeling.adapters.folder import load_adapted, read_adapter
from pretrain.modeling.adapters.model import load_adapter_model
from pretrain.release.release import release
from pretrain.run import pretrain
from tests.cases import mark_slow
from tests.chaos.faults import Fault
from tests.chaos.starts import Start
from tests.pretrain.steps import expect_equal_runs, make_run, read_log, read_weights, start_engine, stopped_in_step

STAGES = ("zero0", "zero1", "zero2", "zero3")


@pytest.fixture
def config(base, tiny_corpus, tmp_path):
    """``config(name, **settings)``: of a small run with dropout in the folder of that name."""

    def make(name="run", **settings):
        common = {"max_steps": 6, "save_steps": 2, "eval_steps": 6, "eval_pairs": 20, "log_steps": 2}
        common |= {"adapter": "pfeiffer", "adapter_size": 6, "objective": "sop", "learning_rate": 1e-2}
        return make_run(tiny_corpus, base, tmp_path / name, **common | settings)

    return make


def find_numbers(value):
    """Every tensor anywhere in nested values."""
    if isinstance(value, torch.Tensor):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from find_numbers(inner)


@pytest.mark.parametrize(("method", "stages"), [("pfeiffer", ("zero0", "zero2", "zero3")), ("lora", ("zero1",))])
def test_checkpoints_hold_no_frozen_weight(method, stages, config, base, tmp_path):
    """Neither the weights nor any of DeepSpeed's files has a number of the encoder; the base is named."""
    if method == "lora":
        pytest.importorskip("peft")
    for stage in stages:
        run = config(stage, adapter=method, max_steps=2, eval_pairs=0, deepspeed_config=f"ds_configs/{stage}.json")
        pretrain(run)
        folder = Path(run.output_dir) / "checkpoints/step-00000002"
        words = max(tensor.numel() for tensor in load_file(str(base / "model.safetensors")).values())
        trained = sum(t.numel() for t in read_weights(run.output_dir, 2).values())
        files = [path for path in (folder / "engine").iterdir() if path.suffix == ".pt"]
        for path in files:
            numbers = [t.numel() for t in find_numbers(torch.load(path, weights_only=False))]
            assert max(numbers) < words / 10, path.name
            assert sum(numbers) < 5 * trained  # weights, master copy, two moments, and paddings
            assert path.stat().st_size < 4 * 5 * trained + 100_000
        with safe_open(str(folder / "weights.safetensors"), "pt") as found:
            assert len(found.metadata()["base"]) == 64
            assert not any(".dense." in name and "pooler" not in name for name in found.keys())  # noqa: SIM118


@pytest.mark.parametrize("stage", mark_slow(STAGES, ("zero0", "zero3")))
def test_a_stopped_run_ends_bit_identical(stage, config, monkeypatch):
    settings = f"ds_configs/{stage}.json"
    whole, halted = config("whole", deepspeed_config=settings), config("halted", deepspeed_config=settings)
    pretrain(whole)
    with stopped_in_step(monkeypatch, 3):
        pretrain(halted)
    assert not (Path(halted.output_dir) / "summary.json").exists()
    pretrain(halted)
    expect_equal_runs(halted.output_dir, whole.output_dir, 6)


@pytest.mark.parametrize("method", ["pfeiffer", "lora"])
def test_a_release_scores_as_the_trained_model(method, config, tmp_path, tiny_corpus, make_stream):
    if method == "lora":
        pytest.importorskip("peft")
    run = config("beer", adapter=method)
    pretrain(run)
    folder = release(Path(run.output_dir), tmp_path / "out/beer")
    files = {"adapter.json", "adapter.safetensors", "pair_head.safetensors", "README.md", "kinspan.json"}
    assert {path.name for path in folder.iterdir()} == files
    adapter = read_adapter(folder)
    trained = read_weights(run.output_dir, 6)
    assert sum(t.numel() for t in trained.values()) == sum(
        t.numel() for t in (*adapter.tensors.values(), *adapter.head.values())
    )
    assert adapter.part.name == "beer"
    card = (folder / "README.md").read_text()
    assert str(tmp_path) not in card + (folder / "kinspan.json").read_text()
    model, _ = load_adapter_model(run.model, method, 6, [], "beer", 1, ("sop",))
    assert not model.load_state_dict(trained, strict=False).unexpected_keys
    inputs = to_tensors(make_stream(tiny_corpus).batch(0, 5), torch.device("cpu"))
    with torch.no_grad():
        expected = model.eval().score_pairs(model.encode(inputs), inputs["starts"])
        model.classifier = load_adapted(str(folder), attn_implementation=model.config._attn_implementation).eval()
        assert torch.allclose(model.score_pairs(model.encode(inputs), inputs["starts"]), expected, atol=1e-5)


def test_a_fusion_is_trained_with_its_adapters_frozen(config, tmp_path):
    made = []
    for name, seed in (("beer", 1), ("travel", 2)):
        run = config(name, seed=seed)
        pretrain(run)
        made.append(release(Path(run.output_dir), tmp_path / f"out/{name}"))
    fused = config("both", adapter="fusion", adapter_size=None, adapters=[str(folder) for folder in made])
    pretrain(fused)
    names = {name.rpartition("parts.")[2] for name in read_weights(fused.output_dir, 6) if ".parts." in name}
    assert names == {"0.query.weight", "0.query.bias", "0.key.weight"}
    adapter = read_adapter(release(Path(fused.output_dir), tmp_path / "out/both"))
    for place, folder in enumerate(made):
        for name, tensor in read_adapter(folder).tensors.items():
            layer, _, rest = name.split(".", 2)
            assert torch.equal(adapter.tensors[f"{layer}.0.of.{place}.{rest}"], tensor)
    load_adapted(str(tmp_path / "out/both"))
    shutil.rmtree(Path(fused.output_dir) / "checkpoints")  # as if that run had ended before its first one
    (Path(fused.output_dir) / "summary.json").unlink()
    pretrain(config("both"))
    load_adapted(str(release(Path(fused.output_dir), tmp_path / "out/one")))


def test_a_checkpoint_of_another_base_is_refused(config, make_base):
    """Though the folder's other files say nothing of it: the checkpoint itself names its base."""
    pretrain(config())
    _, engine = start_engine(config("other", model=str(make_base(seed=8))))
    checkpoint = Path(config().output_dir) / "checkpoints/step-00000006"
    with pytest.raises(KinspanError, match="--model"):
        load_checkpoint(engine, checkpoint, 1)


def run_on_two(config, fault=None):
    settings = {name: value for name, value in vars(config).items() if value not in (None, [], "", False)}
    settings = {**settings, "corpus": config.corpus[0]}
    del settings["local_rank"]
    outcome = Start(settings, 2, Path(config.output_dir).with_suffix(".log")).wait(fault, 300)
    assert outcome.struck if fault else outcome.statuses == [0], outcome.output
    return outcome.output


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_killed_and_resumed_and_one_rank_alike(stage, config):
    """Bit-identical after kill -9; the losses of one rank; and what two ranks wrote goes on with one."""
    settings = f"ds_configs/{stage}.json"
    long = {"max_steps": 12, "save_steps": 4, "log_steps": 1, "deepspeed_config": settings}
    whole, killed, alone = (config(name, **long) for name in ("whole", "killed", "alone"))
    run_on_two(whole)
    run_on_two(killed, Fault("kill -9 all", "checkpoint", number=2))
    moved = config("moved", **long)
    shutil.copytree(killed.output_dir, moved.output_dir)
    assert "resuming from" in run_on_two(killed)
    expect_equal_runs(killed.output_dir, whole.output_dir, 12)
    expected = read_log(whole.output_dir, "train", "step", "pair_loss")
    for run in (alone, moved):
        pretrain(run)
        assert np.allclose(read_log(run.output_dir, "train", "step", "pair_loss"), expected, rtol=0, atol=1e-5)
