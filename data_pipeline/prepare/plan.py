"""What a run of ``prepare`` is to do, for all of its processes and machines."""

import hashlib
import json
import pickle
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from data_pipeline.sampling.pairs import Objective

from .cleaning import Rules
from .inputs import InputTask, count_buckets, cut_tasks, estimate_total
from .readers import InputFile
from .spill import Buckets

OUTPUT_VERSION = 4  # of what the first stage leaves; another version is not taken up


@dataclass(frozen=True)
class PreparePlan:
    """What is to be done, and where.

    folder:        what is done so far
    settings:      those of the manifest
    fingerprint:   of the tokenizer, which has ``vocabulary`` tokens, one of which may stand for ``unknown`` text
    decontaminate: sentences of test sets
    """

    folder: Path
    files: list[InputFile]
    settings: dict[str, Any]
    rules: Rules
    tokenizer_name: str
    fingerprint: str
    vocabulary: int
    unknown: int | None
    objectives: dict[str, Objective]
    decontaminate: list[str]

    @property
    def wide(self) -> bool:
        """Whether token ids need more than 16 bits."""
        return self.vocabulary > 1 << 16

    @property
    def near(self) -> bool:
        return self.settings["duplicates"] == "near"

    @cached_property
    def buckets(self) -> Buckets:
        share = self.rules.validation_share
        return count_buckets(estimate_total(self.files), self.settings["shard_tokens"], share)

    @cached_property
    def tasks(self) -> list[InputTask]:
        """The input tasks. Their keys depend on what decides their output, and on nothing else."""
        own = {k: v for k, v in self.settings.items() if k not in ("shard_tokens", "duplicates", "boilerplate")}
        decides = [OUTPUT_VERSION, own, self.fingerprint, self.wide, self.near]
        return cut_tasks(self.files, json.dumps(decides, sort_keys=True))

    @property
    def encoded(self) -> Path:
        """The folder of what the first stage leaves."""
        return self.folder / "encoded"

    @cached_property
    def run(self) -> Path:
        """The folder of everything else, which is of use to a run of the same inputs and settings alone."""
        text = json.dumps([[task.key for task in self.tasks], self.settings, list(self.objectives)], sort_keys=True)
        return self.folder / f"run-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def shared(self) -> Path:
        """The file of which documents share their id with many."""
        return self.run / "shared.npy"

    @property
    def tokenizer_file(self) -> Path:
        return self.run / "tokenizer.json"

    @property
    def bucket_folder(self) -> Path:
        """The folder of the shards by bucket, see ``write_shards``."""
        return self.run / "buckets"

    @property
    def file(self) -> Path:
        """The file of this plan, which ``load_plan`` reads."""
        return self.run / "plan.pickle"

    def write(self) -> None:
        """Write ``file``, with the input tasks and buckets, which are then the same for all."""
        assert self.tasks
        assert self.buckets
        partial = self.file.with_suffix(".tmp")  # jobs of Slurm may be reading the file
        partial.write_bytes(pickle.dumps(self))
        partial.replace(self.file)


@lru_cache(maxsize=2)
def load_plan(path: Path) -> PreparePlan:
    """Load a plan; a process reads it once, so its path names its content."""
    return pickle.loads(path.read_bytes())
