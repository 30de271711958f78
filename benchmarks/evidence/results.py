"""The results of the study: small committed files, one of each row, with a line of each seed.

A line has the average precision of every question and the rank of its first right answer, from which MAP and MRR
follow, and a hash of the very scores. What else the page needs of a set (which questions are contaminated, the
baselines) stands in SET.json, so that page and statistics are made of these files alone.
"""

import fcntl
import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically

from .recipe import Choice, Recipe, Row

RESULTS = Path(__file__).with_name("results")
DIGITS = 6  # of an average precision
DELETE = "delete it to have it made anew"


class Named(Protocol):
    """A row of any study: what its file is called, and what tells whether a line is of its present settings."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str | None: ...


@dataclass(frozen=True)
class Store:
    """The folder of results."""

    folder: Path = RESULTS

    def read_lines(self, row: Named) -> dict[int, dict[str, Any]]:
        """The lines of the row's present settings, by seed. Raises KinspanError for a damaged file."""
        fingerprint = row.fingerprint
        return {line["seed"]: line for line in self._read_all(row) if line["fingerprint"] == fingerprint}

    def find_missing(self, row: Named, seeds: tuple[int, ...]) -> list[int]:
        """Returns the seeds that have not run."""
        done = self.read_lines(row)
        return [seed for seed in seeds if seed not in done]

    def add(self, row: Named, line: dict[str, Any]) -> None:
        """Writes a line, in the place of those of its seed, and drops those of settings that the row no longer has."""
        line = {"row": row.name, "fingerprint": row.fingerprint, **line}
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # another seed of the row may end at the same moment
            lines = {old["seed"]: old for old in self._read_all(row) if old["fingerprint"] == row.fingerprint}
            lines[line["seed"]] = line
            write_atomically(self._name_file(row), [json.dumps(lines[seed]) + "\n" for seed in sorted(lines)])
        finally:
            os.close(folder)

    def read(self, name: str) -> dict[str, Any] | None:
        """The object in NAME.json, or None where there is none."""
        path = self.folder / f"{name}.json"
        return read_object(path, DELETE) if path.exists() else None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Writes NAME.json."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        write_atomically(self.folder / f"{name}.json", "{\n" + ",\n".join(lines) + "\n}\n")

    def _name_file(self, row: Named) -> Path:
        return self.folder / f"{shorten(row.name)}.jsonl"

    def _read_all(self, row: Named) -> list[dict[str, Any]]:
        path = self._name_file(row)
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise KinspanError(f"{path} is damaged: delete it, and its seeds run again") from error


@dataclass(frozen=True)
class Outcome:
    """The figures of a row: what its seeds came to, question by question.

    ap, rr: ``[S, Q]`` average precision and reciprocal rank
    lines:  as in the file, of the same seeds
    """

    row: Row
    ap: np.ndarray
    rr: np.ndarray
    lines: list[dict[str, Any]]

    @cached_property
    def maps(self) -> np.ndarray:
        """MAP of each seed, ``[S]``."""
        return self.ap.mean(axis=1)

    @property
    def precisions(self) -> list[str]:
        """What each seed was trained in, pre-training and fine-tuning alike; empty where a row is not fine-tuned."""
        return [line["finetune"]["precision"] for line in self.lines if line["finetune"]]


def read_outcome(store: Store, row: Row, seeds: tuple[int, ...] | None = None) -> Outcome | None:
    """The figures of the row's seeds that have run, of those compared unless ``seeds`` are named; None without any."""
    lines = store.read_lines(row)
    kept = [lines[seed] for seed in (seeds or row.compared) if seed in lines]
    if not kept:
        return None
    ap, ranks = np.array([line["ap"] for line in kept]), np.array([line["rank"] for line in kept])
    return Outcome(row, ap, invert_ranks(ranks), kept)


def pack_figures(ap: np.ndarray, rr: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """What a line holds of a seed: figures of each question ``[Q]``, and a hash of the candidates' scores ``[N]``."""
    ranks = np.where(rr > 0, np.rint(1 / np.maximum(rr, 1e-9)), 0).astype(int)
    return {"ap": np.round(ap, DIGITS).tolist(), "rank": ranks.tolist(), "scores": hash_scores(scores)}


def invert_ranks(ranks: np.ndarray) -> np.ndarray:
    """Reciprocal ranks; 0 stands for a question without a right answer."""
    return np.where(ranks > 0, 1 / np.maximum(ranks, 1), 0.0)


def hash_scores(scores: np.ndarray) -> str:
    """Tells whether two runs came to the same scores, bit for bit."""
    return hashlib.sha256(np.ascontiguousarray(scores, dtype=np.float64).tobytes()).hexdigest()[:16]


def settle_choices(recipe: Recipe, store: Store) -> Recipe:
    """Returns the recipe with every choice made whose rows have run: the value of the highest mean dev MAP.

    Of equal values the first one is taken. A choice waits for those before it, since its rows use what they settle.
    """
    chosen: dict[str, Any] = {}
    for number in range(len(recipe.choices)):
        choice = Recipe(recipe.content, chosen).choices[number]
        dev = [compute_dev_map(store, rows) for rows in choice.rows]
        if all(value is not None for value in dev):
            chosen[choice.name] = choice.values[int(np.argmax(dev))]
    return Recipe(recipe.content, chosen)


def compute_dev_map(store: Store, rows: tuple[Row, ...]) -> float | None:
    """The mean dev MAP of a choice's rows; None where one has not run."""
    lines = [line for row in rows for line in store.read_lines(row).values()]
    return float(np.mean([line["dev_map"] for line in lines])) if len(lines) == len(rows) else None


def list_choice_values(store: Store, choice: Choice) -> list[tuple[Any, float | None]]:
    """Each value of a choice with its mean dev MAP."""
    return [(value, compute_dev_map(store, rows)) for value, rows in zip(choice.values, choice.rows, strict=True)]


def shorten(name: str) -> str:
    """A row's name as that of a file."""
    return re.sub(r"[^\w.]+", "-", name)


def is_described(store: Store, name: str, fingerprint: str) -> bool | None:
    """Whether SET.json is of this corpus; None where there is none."""
    found = store.read(name)
    return None if found is None else found["corpus"]["fingerprint"] == fingerprint
