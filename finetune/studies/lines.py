"""The results of a study: small files, one of each row, with a line of JSON for each seed.

A line has the average precision of every question and the rank of its first right answer, from which MAP and MRR
follow, or these of each of several targets. Tables and tests are made of these lines alone. What is known of a data set
beside its rows stands in SET.json: which questions are contaminated, and the figures of what needs no training.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically

from .rows import StudyRow

DIGITS = 6  # of an average precision
DELETE = "delete it to have it made anew"
SHARED = "materials"  # of a study whose lines have several targets: the file of what needs no training


@dataclass(frozen=True)
class ResultStore:
    """The folder of results."""

    folder: Path

    def read_lines(self, row: StudyRow) -> dict[int, dict[str, Any]]:
        """The lines of the row's present settings, by seed. Raises KinspanError for a damaged file."""
        return {line["seed"]: line for line in self._read_all(row)}

    def find_missing(self, row: StudyRow, seeds: Sequence[int]) -> list[int]:
        """Returns the seeds that have not run."""
        done = self.read_lines(row)
        return [seed for seed in seeds if seed not in done]

    def add(self, row: StudyRow, line: dict[str, Any]) -> None:
        """Writes a line, in the place of those of its seed, and drops those of settings that the row no longer has."""
        line = {"row": row.name, "fingerprint": row.fingerprint, **line}
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # another seed of the row may end at the same moment
            lines = {**self.read_lines(row), line["seed"]: line}
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

    def _name_file(self, row: StudyRow) -> Path:
        return self.folder / f"{shorten(row.lines_of)}.jsonl"

    def _read_all(self, row: StudyRow) -> list[dict[str, Any]]:
        path = self._name_file(row)
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise KinspanError(f"{path} is damaged: delete it, and its seeds run again") from error
        return [line for line in lines if row.fingerprint in (None, line["fingerprint"])]


@dataclass(frozen=True)
class RowOutcome:
    """The figures of a row: what its seeds came to, question by question.

    ap, rr: ``[S, Q]`` average precision and reciprocal rank
    lines:  as in the file, of the same seeds; none where nothing was trained
    """

    row: StudyRow
    ap: np.ndarray
    rr: np.ndarray
    lines: list[dict[str, Any]]

    @cached_property
    def maps(self) -> np.ndarray:
        """MAP of each seed, ``[S]``."""
        return self.ap.mean(axis=1)

    @property
    def tuned(self) -> list[dict[str, Any]]:
        """The lines of seeds that were fine-tuned."""
        return [line for line in self.lines if line.get("finetune")]

    @property
    def precisions(self) -> list[str]:
        """What each seed was trained in, pre-training and fine-tuning alike; empty of what is not fine-tuned itself."""
        return [line["finetune"]["precision"] for line in self.tuned if not self.row.mean_of]

    @property
    def is_complete(self) -> bool:
        """Whether all seeds have run that comparisons take."""
        return len(self.ap) == len(self.row.compared)


def read_outcome(store: ResultStore, row: StudyRow, seeds: Sequence[int] | None = None) -> RowOutcome | None:
    """The figures of the row's seeds that have run, of those compared unless ``seeds`` are named; None without any."""
    lines = store.read_lines(row)
    kept = [lines[seed] for seed in (seeds or row.compared) if seed in lines]
    if not kept:
        return None
    figures = [collect_figures(line, row.targets) for line in kept]
    return RowOutcome(row, np.stack([ap for ap, _ in figures]), np.stack([rr for _, rr in figures]), kept)


def average_outcomes(row: StudyRow, outcomes: Sequence[RowOutcome]) -> RowOutcome | None:
    """The mean figures of several rows, question by question, of the seeds that all of them have; None without any."""
    places = [{line["seed"]: place for place, line in enumerate(outcome.lines)} for outcome in outcomes]
    seeds = [seed for seed in places[0] if all(seed in own for own in places)]
    if not seeds:
        return None
    ap, rr = (
        np.mean([getattr(o, name)[[own[s] for s in seeds]] for o, own in zip(outcomes, places, strict=True)], axis=0)
        for name in ("ap", "rr")
    )
    return RowOutcome(row, ap, rr, [line for outcome in outcomes for line in outcome.lines])


def read_untrained(
    store: ResultStore, name: str, set_name: str, targets: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Average precision and reciprocal rank, ``[Q]``, of what needs no training, such as BM25, on a set."""
    if targets:
        told = store.read(SHARED) or {}
        if ranked := told["baselines"].get(name):
            return collect_figures({"targets": ranked}, targets)
        ap = np.concatenate([told[name][target] for target in targets])  # what a random order comes to has no ranks
        return ap, np.full(len(ap), np.nan)
    return collect_figures((store.read(set_name) or {})["baselines"][name], ())


def collect_figures(line: dict[str, Any], targets: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Average precision and reciprocal rank, ``[Q]``, of a line's questions, or of these targets in their order."""
    parts = [line["targets"][target] for target in targets] or [line]
    return (
        np.concatenate([part["ap"] for part in parts]),
        invert_ranks(np.concatenate([part["rank"] for part in parts])),
    )


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


def shorten(name: str) -> str:
    """A row's name as that of a file."""
    return re.sub(r"[^\w.]+", "-", name)
