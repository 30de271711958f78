"""What the results say: the figures of every row on every target, and the comparisons of the recipe."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.evidence.results import Store
from benchmarks.evidence.statistics import Contrast, correct, measure_contrast

from .materials import NAME
from .recipe import BEST, COSINE, MEAN, Recipe, Row


@dataclass(frozen=True)
class Finding:
    """A comparison on a group of targets; ``contrast`` is None where a row of it has not run."""

    group: str
    rows: tuple[Row, Row] | None
    names: tuple[str, str]
    contrast: Contrast | None

    @property
    def label(self) -> str:
        """What is less what."""
        titles = [row.title for row in self.rows] if self.rows else list(self.names)
        return " less ".join(titles)


@dataclass(frozen=True)
class Figures:
    """The figures of a row on a group of targets, ``[S, Q]``: average precision, and whether the first one is right."""

    ap: np.ndarray
    first: np.ndarray


@dataclass(frozen=True)
class Findings:
    """The study as far as it has run."""

    recipe: Recipe
    store: Store

    @cached_property
    def materials(self) -> dict[str, Any]:
        """What is known beside the rows; empty before the first command."""
        return self.store.read(NAME) or {}

    @cached_property
    def lines(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of each row that has run, by its name."""
        rows = [row for start in self.recipe.content["starts"] for row in self.recipe.list_rows(start)]
        found = {row.name: list(self.store.read_lines(row).values()) for row in rows}
        return {name: lines for name, lines in found.items() if lines}

    def list_rows(self, start: str) -> list[Row]:
        """The rows of a start that have run, at least one seed of them."""
        return [row for row in self.recipe.list_rows(start) if row.name in self.lines]

    def read(self, name: str, targets: list[str]) -> Figures:
        """The figures of a row or a baseline on these targets, question by question."""
        lines = [line["targets"] for line in self.lines.get(name, ())] or [self.materials["baselines"][name]]
        ap = np.array([np.concatenate([line[target]["ap"] for target in targets]) for line in lines])
        first = np.array([np.concatenate([line[target]["rank"] for target in targets]) for line in lines]) == 1
        return Figures(ap, first)

    def read_mean(self, start: str, targets: list[str]) -> Figures:
        """The mean figures of the forums' adapters, question by question, of the seeds that all of them have run."""
        found = [self.read(f"{start}/{forum}", targets) for forum in self.recipe.forums]
        seeds = min(len(figures.ap) for figures in found)
        ap, first = (np.mean([getattr(f, name)[:seeds] for f in found], axis=0) for name in ("ap", "first"))
        return Figures(ap, first)

    def find_best(self, start: str, group: str) -> Row | None:
        """The forum's adapter with the highest mean over seeds on a group; None where not all of them have run."""
        rows = [row for row in self.list_rows(start) if row.arm in self.recipe.forums]
        if len(rows) < len(self.recipe.forums):
            return None
        targets = self.recipe.groups[group]
        return max(rows, key=lambda row: float(self.read(row.name, targets).ap.mean()))

    def find_row(self, start: str, arm: str, group: str) -> Row | None:
        """The row that a comparison calls by this name; None where it has not run."""
        if arm in (BEST, MEAN):
            best = self.find_best(start, group)
            return best if arm == BEST or best is None else Row(start, MEAN, self.recipe.forums, None, {})
        return next((row for row in self.list_rows(start) if row.arm == arm), None)

    @cached_property
    def findings(self) -> list[Finding]:
        """Every comparison of the recipe on every group, with the seeds that have run."""
        start, listed = self.recipe.content["compared"], []
        for group in self.recipe.groups:
            for one, other in self.recipe.content["comparisons"]:
                rows = self.find_row(start, one, group), self.find_row(start, other, group)
                listed.append((group, (one, other), (rows[0], rows[1]) if rows[0] and rows[1] else None))
        contrasts = [self._measure(group, rows) for group, _, rows in listed]
        return [
            Finding(group, rows, names, contrast)
            for (group, names, rows), contrast in zip(listed, correct(contrasts), strict=True)
        ]

    def _measure(self, group: str, rows: tuple[Row, Row] | None) -> Contrast | None:
        if rows is None:
            return None
        targets = self.recipe.groups[group]
        read = [self.read_mean(r.start, targets) if r.arm == MEAN else self.read(r.name, targets) for r in rows]
        return measure_contrast([figures.ap for figures in read])

    def list_harm(self, start: str) -> list[tuple[Row, str, float, float]]:
        """The trained rows whose mean on a group is below what the start's own cosine has there: row, group, both."""
        harmed: list[tuple[Row, str, float, float]] = []
        if f"{start}/{COSINE}" not in self.lines:
            return harmed
        for row in self.list_rows(start):
            for group, targets in self.recipe.groups.items():
                ours = float(self.read(row.name, targets).ap.mean())
                plain = float(self.read(f"{start}/{COSINE}", targets).ap.mean())
                if row.settings is not None and ours < plain:
                    harmed.append((row, group, ours, plain))
        return harmed
