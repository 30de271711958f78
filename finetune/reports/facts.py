"""What a run was made of and ran on, for its results and its model card."""

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from data_pipeline.files import write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.training.config import FinetuneConfig
from finetune.training.fingerprints import fingerprint_answers, fingerprint_model
from finetune.training.plan import Stage
from finetune.training.stages import Data
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model

from .card import format_card

PACKAGES = ("kinspan", "torch", "deepspeed", "transformers", "tokenizers", "numpy", "pyarrow")


def name_model(config: FinetuneConfig) -> str:
    """Returns the name of the model that fine-tuning starts from, for people."""
    return DEFAULT_MODEL_NAME if config.model == default_model() else shorten_name(str(config.model))


def describe_surroundings(config: FinetuneConfig, data: Data, num_ranks: int) -> dict[str, Any]:
    """Returns versions, device, and the fingerprints of what was read; the device is that of this process."""
    splits = {split.split: split for split in (data.train, *data.measured)}
    splits |= {"transfer": data.transfer} if data.transfer is not None else {}
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"processor, {platform.machine()}",
        "ranks": num_ranks,
        "fingerprints": {
            "model": fingerprint_model(str(config.model)),
            **{name: fingerprint_answers(split) for name, split in splits.items()},
        },
    }


def write_card(
    folder: Path, config: FinetuneConfig, stage: Stage, seed: int, step: int, figures: Mapping[str, Mapping[str, float]]
) -> None:
    """Writes the card of the ranker in ``folder``, which was best after ``step`` updates of the stage."""
    facts = {
        "Starting model": name_model(config),
        "Data": stage.train.name,
        "Transferred from": config.transfer.partition("=")[0] if config.transfer and stage.what != "transfer" else None,
        "Questions and pairs": f"{stage.train.num_questions:,} and {stage.train.num_pairs:,}",
        "Loss": config.loss,
        "Updates": f"{step:,}",
        "Pairs in an update": stage.batch_size or config.batch_size,
        "Peak learning rate": stage.learning_rate,
        "Tokens of a pair, at most": config.max_length,
        "Seed": seed,
        "kinspan": version("kinspan"),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    write_atomically(folder / "README.md", format_card(known, config.max_length, figures))
