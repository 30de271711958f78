"""What a run says about itself at its start, and the summary that it leaves at its end."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from shlex import quote
from typing import Any

import torch

from data_pipeline.core.files import write_atomically
from pretrain.engine.device import describe_device
from pretrain.engine.log import read_metrics

from .batches import average_tokens
from .config import as_dict
from .finished import SUMMARY
from .setup import Setup
from .state import RunProgress

FEW_TOKENS = 15_000  # of a micro-batch: with 12,000 RoBERTa-base had 69% of the speed that 49,000 had on an H200
PACKAGES = ("kinspan", "torch", "deepspeed", "transformers", "tokenizers", "numpy", "pyarrow")


def describe_run(setup: Setup, module: torch.nn.Module) -> list[str]:
    """Lines for the screen. ``module``: the engine's, whose parameters may be divided among the ranks"""
    layout = setup.layout
    parameters = sum(int(getattr(p, "ds_numel", p.numel())) for p in module.parameters())
    and_generator = " and its generator" if setup.facts["token_loss"] == "rtd" else ""
    epochs = setup.total_steps * layout.size / setup.train_stream.epoch_pairs
    return [
        f"{setup.facts['model']['name']}{and_generator}: {parameters / 1e6:.1f} M parameters, "
        f"{setup.facts['precision']}, ZeRO {setup.facts['zero_stage']}, {layout.world} rank(s) x "
        f"{layout.accumulation} micro-batch(es) of about {layout.largest} pairs = {layout.size} pairs per step",
        f"device: {describe_device()}",
        f"{setup.total_steps} steps of {setup.train_stream.epoch_pairs / layout.size:,.0f} in an epoch ({epochs:.2f} "
        f"epochs), pairs of at most {setup.train_stream.max_length} tokens",
        *_warn_of_small_batches(setup),
        f"watch it: {setup.folder / 'report.html'}, or tensorboard --logdir {quote(str(setup.folder / 'tensorboard'))}",
    ]


def _warn_of_small_batches(setup: Setup) -> list[str]:
    """A line where a GPU waits for the host, which takes as long to launch the kernels of few tokens as of many."""
    if not torch.cuda.is_available():
        return []
    tokens = setup.layout.largest * average_tokens(setup.train_stream)
    if tokens >= FEW_TOKENS:
        return []
    layout, config = setup.layout, setup.config
    advice = ["raise --micro_batch_size"] if layout.accumulation > 1 else ["raise --global_batch_size"]
    advice += [] if config.compile or config.pair_loss else ["give --compile"]
    return [
        f"warning: a micro-batch has about {tokens:,.0f} tokens, too few to keep a GPU busy: below {FEW_TOKENS:,} it "
        f"waits for the host; {' and '.join(advice)}"
    ]


def write_summary(setup: Setup, progress: RunProgress) -> dict[str, Any]:
    """Writes summary.json, which shows that the run is complete, and returns its content."""
    lines = read_metrics(setup.folder)
    ends: dict[str, Any] = {}
    for split, name in (("train", "losses"), ("validation", "validation")):
        own = [line for line in lines if line["split"] == split]
        ends |= {f"first_{name}": own[0] if own else None, f"last_{name}": own[-1] if own else None}
    summary = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "pairs": progress.step * setup.layout.size,
        "skipped_steps": progress.skipped,
        **ends,
        "wall_seconds": round(progress.wall_seconds, 1),
        "world_size": setup.layout.world,
        "corpus_fingerprint": setup.facts["corpus"]["fingerprint"],
        "model": setup.facts["model"],
        "versions": {"python": platform.python_version(), **{p: _find_version(p) for p in PACKAGES}},
        "config": as_dict(setup.config),
        "deepspeed": setup.deepspeed_settings,
    }
    write_atomically(setup.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
