"""Plans a run of ``prepare``: makes tasks of the input files, by their sizes only, and sets the number of buckets."""

import hashlib
import json
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from data_pipeline.sampling.pairs import Objective

from .cleaning import Rules
from .document import Omitted
from .readers import FilePart, InputFile, Record, find_parts, read_records
from .readers.reader import estimate_text
from .spill import Buckets

OUTPUT_VERSION = 10  # of the first stage's files; files of another version are not reused
MIN_GROUP, MAX_GROUP = 1 << 20, 1 << 26  # bytes of small files that share a task
MIN_BUCKET, MAX_BUCKET = 1 << 24, 1 << 27  # bytes of encoded documents that are shuffled in memory at a time
Piece = tuple[InputFile, FilePart | None]  # a file, or a part of it


@dataclass(frozen=True)
class InputTask:
    """Pieces that a task reads; ``key`` is a hash of them and of all settings that its output depends on."""

    key: str
    size: int
    pieces: list[Piece]

    @property
    def name(self) -> str:
        file, part = self.pieces[0]
        return f"{file.name}, part {part.begin}-{part.end}" if part else file.name

    def read(self) -> Iterator[Record]:
        """Yields the records of all pieces, and for a file without records one that says so."""
        for file, part in self.pieces:
            is_empty = True
            for record in read_records(file.name, part, file.called, file.size):
                is_empty = False
                yield replace(record, folder=file.folder)
            if is_empty and (part is None or not part.begin):
                yield Record(file.name, 1, Omitted("a file in which there is no record", file.size), file.called)


def cut_tasks(files: list[InputFile], settings: str) -> list[InputTask]:
    """Cuts large files into parts where their readers can, and groups small ones, in their order.

    A hash of its name decides whether a file ends a group, so that an added file changes few groups. ``settings`` are
    all that a task's output depends on.
    """
    pieces: list[tuple[Piece, int]] = []
    for file in files:
        parts = find_parts(file.name, file.size)
        size = max(1, estimate_text(file.name, file.size) // max(1, len(parts)))
        pieces += [((file, part), size) for part in parts]
    target = min(max(sum(size for _, size in pieces) // 1024, MIN_GROUP), MAX_GROUP)
    limit = 1 << (target.bit_length() - 1)  # a power of two, which stays the same when the input grows a little
    groups: list[list[Piece]] = []
    sizes: list[int] = []
    is_full = True
    for piece, size in pieces:
        if is_full or sizes[-1] + size > limit:
            groups.append([])
            sizes.append(0)
        groups[-1].append(piece)
        sizes[-1] += size
        name = piece[0].name.encode("utf-8", "surrogateescape")
        is_full = zlib.crc32(name) / 2**32 * limit < 2 * size
    tasks = []
    for group, size in zip(groups, sizes, strict=True):
        contents = [(asdict(file), part and asdict(part)) for file, part in group]
        key = json.dumps([settings, contents], sort_keys=True).encode("utf-8", "surrogateescape")
        tasks.append(InputTask(hashlib.sha256(key).hexdigest()[:24], size, group))
    return tasks


def count_buckets(total: int, shard_bytes: int, validation_share: float) -> Buckets:
    """Returns the number of buckets of each split for ``total`` bytes of encoded documents."""
    bucket_bytes = max(min(max(total // 1024, MIN_BUCKET), MAX_BUCKET), shard_bytes)
    return Buckets(max(1, -(-total // bucket_bytes)), max(1, round(total * validation_share / bucket_bytes)))


@dataclass(frozen=True)
class PreparePlan:
    """Settings of a run and the folders of its stages, for all of its processes and machines.

    ``fingerprint``, ``vocabulary`` (size) and ``unknown_id`` (None if there is none) describe the tokenizer.
    """

    folder: Path
    files: list[InputFile]
    settings: dict[str, Any]
    rules: Rules
    tokenizer_name: str
    fingerprint: str
    vocabulary: int
    unknown_id: int | None
    objectives: dict[str, Objective]
    decontaminate: list[str]

    @property
    def wide(self) -> bool:
        """Tells whether token ids need more than 16 bits."""
        return self.vocabulary > 1 << 16

    @property
    def near(self) -> bool:
        return self.settings["duplicates"] == "near"

    def count_buckets(self, total: int) -> Buckets:
        """Returns the number of buckets for the documents that the input tasks wrote, ``total`` bytes."""
        shard_bytes = self.settings["shard_tokens"] * (4 if self.wide else 2)
        return count_buckets(total, shard_bytes, self.rules.validation_share)

    @cached_property
    def tasks(self) -> list[InputTask]:
        """Returns the input tasks. Their keys depend on exactly what their output depends on."""
        later_settings = ("shard_tokens", "duplicates", "boilerplate")
        settings = {name: value for name, value in self.settings.items() if name not in later_settings}
        dependencies = [OUTPUT_VERSION, settings, self.fingerprint, self.wide, self.near]
        return cut_tasks(self.files, json.dumps(dependencies, sort_keys=True))

    @property
    def encoded(self) -> Path:
        """Returns the folder of the first stage's output."""
        return self.folder / "encoded"

    @cached_property
    def run(self) -> Path:
        """Returns the folder of the later stages' output, which only a run of the same inputs and settings reuses."""
        text = json.dumps([[task.key for task in self.tasks], self.settings, list(self.objectives)], sort_keys=True)
        return self.folder / f"run-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def tokenizer_file(self) -> Path:
        return self.run / "tokenizer.json"

    def signatures(self, key: str) -> Path:
        """Returns the folder of the MinHash signatures of an input task's documents."""
        return self.encoded / f"{key}.signatures"

    def write(self) -> Path:
        """Writes the plan for ``load_plan``; returns its path."""
        _ = self.tasks  # computed here once, and pickled
        file = self.run / "plan.pickle"
        temporary = file.with_suffix(".tmp")  # jobs of Slurm may be reading the file
        temporary.write_bytes(pickle.dumps(self))
        return temporary.replace(file)


@lru_cache(maxsize=2)
def load_plan(path: Path) -> PreparePlan:
    """Loads a plan, once per process and path."""
    return pickle.loads(path.read_bytes())
