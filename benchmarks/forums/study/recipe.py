"""The recipe of the study, recipe.yaml: its rows, their order, and the groups of targets that they are compared on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.evidence.recipe import hash_settings

RECIPE = Path(__file__).with_name("recipe.yaml")
UNTRAINED, COSINE, SINGLE, MULTI, FUSION = "untrained", "cosine", "single", "multi", "fusion"
BEST, MEAN = "best", "mean"  # of the forums' adapters
TITLES = {
    UNTRAINED: "untrained, a new pair head",
    COSINE: "untrained, cosine of embeddings",
    MULTI: "one model of all forums",
    FUSION: "fusion of five adapters",
    MEAN: "mean of the five adapters",
}
KINDS = ("title_body", "title_answer")
INSURANCEQA, WIKIQA = "insuranceqa", "wikiqa"


@dataclass(frozen=True)
class Row:
    """A line of the tables: a start and what was made of it.

    arm:      UNTRAINED, COSINE, MULTI, FUSION, or the forum whose adapter it is
    settings: of launch/pretrain.py beside model, corpus, adapters, seed and folder; None where nothing is trained
    identity: all else of the recipe that its figures depend on
    """

    start: str
    arm: str
    forums: tuple[str, ...]
    settings: dict[str, Any] | None
    identity: dict[str, Any]

    @property
    def name(self) -> str:
        """By which results are kept."""
        return f"{self.start}/{self.arm}"

    @property
    def title(self) -> str:
        """For the page."""
        return TITLES.get(self.arm, f"adapter of {self.arm}")

    @property
    def fingerprint(self) -> str:
        """Names the settings of the row."""
        return hash_settings({"settings": self.settings, "forums": self.forums, **self.identity})


@dataclass(frozen=True)
class Recipe:
    """content: recipe.yaml as it stands."""

    content: dict[str, Any]

    @property
    def forums(self) -> tuple[str, ...]:
        """Those that have adapters and targets."""
        return tuple(self.content["forums"])

    @property
    def all_forums(self) -> tuple[str, ...]:
        """Those that the one model of all is trained on."""
        return (*self.forums, *self.content["also_in_multi_task"])

    @property
    def groups(self) -> dict[str, list[str]]:
        """The targets, by the groups in which rows are compared."""
        of_forums = {kind: [f"{forum}/{kind}" for forum in self.forums] for kind in KINDS}
        return {**of_forums, INSURANCEQA: [INSURANCEQA], WIKIQA: [WIKIQA]}

    @property
    def targets(self) -> list[str]:
        """The names of all targets."""
        return [name for names in self.groups.values() for name in names]

    @property
    def identity(self) -> dict[str, Any]:
        """What the figures of all rows depend on."""
        names = ("threads", "precision", "max_length", "forums", "also_in_multi_task", "held_out", "targets", "train")
        return {name: self.content[name] for name in names}

    def list_rows(self, start: str) -> list[Row]:
        """The rows of a start, in the order in which a seed of them runs."""
        arms = self.content["starts"][start]["arms"]
        shared = {"precision": self.content["precision"], "max_length": self.content["max_length"]}
        shared |= self.content["train"]
        rows = [Row(start, arm, (), None, self.identity) for arm in (COSINE, UNTRAINED)]
        rows += [Row(start, forum, (forum,), {**shared, **arms[SINGLE]}, self.identity) for forum in self.forums]
        rows.append(Row(start, MULTI, self.all_forums, {**shared, **arms[MULTI]}, self.identity))
        # A fusion's figures depend on how the adapters were trained.
        identity = {**self.identity, "adapters": arms[SINGLE]}
        return [*rows, Row(start, FUSION, self.forums, {**shared, **arms[FUSION]}, identity)]

    def list_jobs(self) -> list[tuple[Row, int]]:
        """Every row with every seed, in order; a cosine has the first seed alone, since none matters to it."""
        jobs: list[tuple[Row, int]] = []
        for start, seed in self.content["order"]:
            begun = {row.start for row, _ in jobs}
            jobs += [(row, seed) for row in self.list_rows(start) if row.arm != COSINE or start not in begun]
        return jobs


def read_recipe(path: Path = RECIPE) -> Recipe:
    """Reads the recipe."""
    return Recipe(yaml.safe_load(path.read_text(encoding="utf-8")))
