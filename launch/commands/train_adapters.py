"""Adapters of many corpora beside one base, in one command or as a job array."""

import os
from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import REQUIRED, setting
from launch.commands._adapters import plan_runs, train_all
from pretrain import config as pretraining

DESCRIPTION = """Trains an adapter for each corpus beside one frozen --model, one after another.

Each has a run folder of its own, --output_dir/NAME, NAME being the last part of the corpus's path, and ends with the
adapter in --output_dir/NAME/release. The same command again skips the finished ones and resumes the one under way. As
a job array, task K of N takes every N-th corpus: --task K/N. All other settings are those of kinspan pretrain."""

EPILOG = """examples:
  kinspan adapter train --corpus forums/* --model bert-base-uncased --output_dir adapters
  kinspan adapter train --config launch/recipes/multicqa-adapters.yaml --corpus forums/*
  kinspan adapter train --corpus forums/* --output_dir adapters --task $SLURM_ARRAY_TASK_ID/16"""


@dataclass(kw_only=True)
class TrainAdaptersConfig(pretraining.PretrainConfig):
    """Settings of this entry: those of kinspan pretrain, of which these mean something else."""

    corpus: list[str] = setting(REQUIRED)
    """Corpus folders, written by kinspan prepare: each gets an adapter of its own."""
    adapter: Literal["pfeiffer", "lora", "fusion"] | None = setting("pfeiffer")
    """What each adapter is, as for kinspan pretrain."""
    output_dir: str = setting("runs/adapters")
    """Folder of the runs' folders."""
    task: str | None = setting(None)
    """Of a job array: the task's number and how many there are, such as 3/8. Without it: all."""


def main() -> None:
    config = parse(TrainAdaptersConfig, DESCRIPTION, EPILOG)
    is_first = os.environ.get("RANK", "0") == "0"
    train_all(plan_runs(config, config.task), lambda line: print(line, flush=True) if is_first else None)
