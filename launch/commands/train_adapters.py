"""Trains an adapter for each of many corpora on one base model, in one command or as a job array."""

import gc
import logging
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError, quote_error, redact
from data_pipeline.core.settings import REQUIRED, setting
from data_pipeline.sources import parse_sources
from pretrain import config as pretraining
from pretrain.engine.stop import listen_for_stop
from pretrain.engine.world import read_launcher_variables
from pretrain.planning.checks import check

log = logging.getLogger(__name__)

DESCRIPTION = """Trains an adapter on each corpus for one frozen --model, one after another.

The adapter of a corpus is written to --output_dir/NAME/release, NAME being the last part of the corpus's path. The same
command again skips finished adapters and resumes the others. --task K/N, for job arrays, takes every N-th corpus.
All other settings are those of kinspan pretrain."""

EPILOG = """examples:
  kinspan adapter train --config launch/recipes/multicqa-adapters.yaml --corpus forums/*
  kinspan adapter train --corpus forums/* --output_dir adapters --task $SLURM_ARRAY_TASK_ID/16"""


@dataclass(kw_only=True)
class TrainAdaptersConfig(pretraining.PretrainConfig):
    corpus: list[str] = setting(REQUIRED)
    """Corpus folders, written by kinspan prepare; each gets an adapter."""
    adapter: Literal["pfeiffer", "lora", "fusion"] | None = setting("pfeiffer")
    """Kind of the adapters, as for kinspan pretrain."""
    output_dir: str = setting("runs/adapters")
    """Folder for the runs."""
    task: str | None = setting(None)
    """For a job array: K/N, the K-th of N tasks, such as 3/8. Without it: all corpora."""


def main() -> None:
    config = parse(TrainAdaptersConfig, DESCRIPTION, EPILOG)
    train_all(plan_runs(config, config.task))


def name_runs(corpora: list[str]) -> dict[str, str]:
    """Returns the corpus of each run by the name of its folder, the last part of the corpus's path."""
    names = [Path(redact(source.path).rstrip("/")).name for source in parse_sources(corpora)]
    for name, count in Counter(names).items():
        if count > 1 or name in ("", ".."):
            raise KinspanError(f"--corpus: {name!r} cannot name a run: give each corpus a name")
    return dict(zip(names, corpora, strict=True))


def parse_task(text: str | None) -> tuple[int, int]:
    """Parses ``"3/8"`` as (2, 8): the third of eight tasks of a job array; without a text the only task."""
    number, _, count = (text or "1/1").partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise KinspanError(f"--task {text}: give the numbers of the task and of all tasks, such as 1/8 to 8/8")
    return int(number) - 1, int(count)


def plan_runs(config: pretraining.PretrainConfig, task: str | None) -> dict[str, pretraining.PretrainConfig]:
    """Returns the settings of each run of this task, by its name; of N tasks each takes every N-th corpus."""
    from pretrain.planning.corpora import list_sources  # takes a while to import

    if config.adapter is None:
        raise KinspanError("--adapter: give pfeiffer, lora or fusion")
    if config.dry_run:
        raise KinspanError("--dry_run: use kinspan pretrain --dry_run with --adapter and one of the corpora")
    first, step = parse_task(task)
    chosen = list_sources(config)
    sources = zip(config.corpus, parse_sources(config.corpus), strict=True)
    corpora = name_runs([text for text, source in sources if source in chosen])
    shared = {field.name: getattr(config, field.name) for field in fields(pretraining.PretrainConfig)}
    shared |= {"forums": None, "min_questions": None}  # already applied by list_sources
    runs = {}
    for name, corpus in list(corpora.items())[first::step]:
        folder = str(Path(config.output_dir) / name)
        runs[name] = pretraining.PretrainConfig(**{**shared, "corpus": [corpus], "output_dir": folder})
        check(runs[name])
    return runs


def train_all(runs: dict[str, pretraining.PretrainConfig]) -> None:
    """Trains and releases each unfinished adapter; resumes an interrupted run.

    A corpus that cannot be trained on is skipped, and a KinspanError is raised at the end. With several ranks it is
    raised at once, because the ranks could not agree on the next corpus.
    """
    from launch.commands._stages import run_pretraining  # torch takes seconds to import
    from pretrain.engine.device import return_freed_memory

    failed: dict[str, str] = {}
    log.info("adapters of this task: %d", len(runs))
    with listen_for_stop(next((config.max_hours for config in runs.values()), None)):
        for number, (name, config) in enumerate(runs.items(), start=1):
            log.info("adapter %d of %d: %s", number, len(runs), name)
            try:
                run_pretraining(config)
            except KinspanError as error:
                if read_launcher_variables()[2] > 1:
                    raise
                failed[name] = quote_error(error)
                log.warning("skipped %s: %s", name, failed[name])
            gc.collect()  # engines are in reference cycles
            return_freed_memory()
    if failed:
        name, reason = next(iter(failed.items()))
        raise KinspanError(f"{len(failed)} of {len(runs)} adapters were not trained; the first: {name}: {reason}")
