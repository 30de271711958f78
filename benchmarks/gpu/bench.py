"""Gives the checks the kit's models and corpora, and runs of the product in this process or by its command."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks._common import ROOT, read_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.config import PretrainConfig

from . import CORPORA, MODELS

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
UNIT_TFLOPS = 1000.0  # what the log's utilisation is taken of, which says the TFLOP/s themselves
_RUNS = count()


@dataclass(frozen=True)
class Row:
    """A result. ``figures``: by name with their unit. ``holds``: None where a row only measures"""

    what: str
    figures: dict[str, Any]
    holds: bool | None = None


_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
KIT_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the tokenizer's corpus, the family and its config
    "roberta-base": ("roberta", *read_model("roberta-base")),
    "minilm-l6": ("bert", "bert", _MINILM),
    "electra-base": ("bert", *read_model("google/electra-base-discriminator")),
    "electra-base-generator": ("bert", *read_model("google/electra-base-generator")),
    "modernbert-base": ("roberta", "modernbert", {"vocab_size": 50368}),
}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
_DEBERTA = {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
_OF_FAMILY: dict[str, dict[str, Any]] = {  # what sets a small model of the family apart from BERT's
    **{key: {"max_position_embeddings": 514, "type_vocab_size": 2} for key in ("roberta", "xlm-roberta", "camembert")},
    "distilbert": {"hidden_dim": 128},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "mpnet": {"max_position_embeddings": 514},
    "deberta-v2": _DEBERTA | {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 32, "global_attn_every_n_layers": 2},
}


def write_config(folder: Path, family: str, tokenizer: Any, config: dict[str, Any]) -> str:
    """Writes a model folder without weights, ``config`` and the tokenizer. Returns its name."""
    from transformers import AutoConfig

    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")}
    ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    size = max(len(tokenizer), config.get("vocab_size", 0))
    AutoConfig.for_model(family, **{**ids, **config, "vocab_size": size}).save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    return str(folder)


@dataclass(frozen=True)
class Bench:
    """The kit, a folder that is deleted afterwards, and whether tiny models stand in."""

    kit: Path
    scratch: Path
    quick: bool

    def corpus(self, name: str) -> str:
        """Returns the folder of the corpus of that tokenizer, "roberta" or "bert"."""
        return str(self.kit / CORPORA / name)

    def model(self, name: str, **changes: Any) -> str:
        """Returns the folder of a model of KIT_MODELS, of the kit or small, its config changed by ``changes``."""
        kept, (_, family, config) = self.kit / MODELS / name, KIT_MODELS[name]
        if not self.quick and not changes:
            return str(kept)
        small = SMALL | _OF_FAMILY.get(family, {}) if self.quick else {}
        folder = self.scratch / "-".join((name, *map(str, changes.values())))
        return write_config(folder, family, load_tokenizer(str(kept)), config | small | changes)

    def small_model(self, family: str) -> str:
        """Returns a small model of any family, with BERT's tokenizer, whose attention differs from the start."""
        config = SMALL | _OF_FAMILY.get(family, {}) | {"initializer_range": 0.1}
        tokenizer = load_tokenizer(str(self.kit / MODELS / "minilm-l6"))
        return write_config(self.scratch / f"small-{family}", family, tokenizer, config)

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        """Returns settings of a run of a model of KIT_MODELS without validation, changed by ``more``."""
        settings: dict[str, Any] = {
            "corpus": self.corpus(KIT_MODELS[name][0]),
            "model": more.get("model") or self.model(name),
            "output_dir": str(self.scratch / f"run-{next(_RUNS)}"),
            "precision": "bf16" if ON_GPU else "fp32",
            "eval_pairs": 0,
            "keep_checkpoints": 1,
            "num_workers": 4 if ON_GPU else 1,
            "peak_tflops": UNIT_TFLOPS,
            "stall_minutes": 10.0,
        }
        if name == "electra-base":
            settings["generator"] = self.model("electra-base-generator")
        return settings | more


class Enough(Exception):
    """Ends a run that has shown what it was run for."""


def train_here(settings: dict[str, Any], before: Callable[[int, Any], None]) -> list[dict[str, Any]]:
    """Runs the product in this process until its last step or Enough; returns the training lines of its log.

    before: called before each step with its number since the start, and the engine; may raise Enough
    """
    import pretrain.run

    numbers, train_step = count(), pretrain.run.train_step

    def watched(*arguments: Any, **named: Any) -> Any:
        before(next(numbers), arguments[0])
        return train_step(*arguments, **named)

    try:
        with suppress(Enough), mock.patch("pretrain.run.train_step", watched):
            pretrain.run.pretrain(PretrainConfig(**settings))
    finally:  # gives back what the run held on the device
        gc.collect()
        synchronize()
        torch.cuda.empty_cache()
    return read_lines(settings)


def synchronize() -> None:
    """Waits until the GPU, where there is one, has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()


def read_lines(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the training lines of a run's log."""
    path = Path(settings["output_dir"]) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["split"] == "train"]


def measure_speed(settings: dict[str, Any], seconds: float, warm: int, lines: int) -> dict[str, float]:
    """Returns medians over the lines of a run's log after ``warm`` of them: at least ``lines``, and for ``seconds``."""
    began: list[float] = []

    def stop(step: int, engine: Any) -> None:
        began.append(time.monotonic())
        if step >= (warm + lines) * settings["log_steps"] and began[-1] - began[0] > seconds:
            raise Enough

    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    settled = train_here({**settings, "max_steps": 10**6, "save_steps": 10**6}, stop)[warm:]
    tokens, mfu = (statistics.median(line[name] for line in settled) for name in ("tokens_per_second", "mfu_percent"))
    counted = began[warm * settings["log_steps"] :]
    update = 1e3 * (counted[-1] - counted[0]) / (len(counted) - 1)
    memory = {"peak, GB": torch.cuda.max_memory_allocated() / 1e9} if ON_GPU else {}
    return {"tokens/s": tokens, "TFLOP/s": mfu * UNIT_TFLOPS / 100, "ms per update": update, **memory}


def start_command(settings: dict[str, Any], *before: str, **variables: str) -> subprocess.Popen:
    """Starts launch/pretrain.py with these settings, by the flags of its help. ``before``: Python's arguments"""
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, *before, str(ROOT / "launch/pretrain.py"), *flags]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **variables})


def finish(process: subprocess.Popen) -> None:
    """Waits for a command. Raises KinspanError where it failed."""
    if status := process.wait():
        raise KinspanError(f"{' '.join(process.args[1:3])} ... ended with status {status}")  # type: ignore[index]
