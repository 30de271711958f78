"""The recipe of the study, recipe.yaml: rows and their settings, choices, comparisons, and what is cut first."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.errors import KinspanError

RECIPE = Path(__file__).with_name("recipe.yaml")
FINETUNE, HEAD, COSINE = "finetune", "head", "cosine"  # how a row ranks
MEASURED = {HEAD: "zero-shot by the pair head", COSINE: "zero-shot by the cosine"}  # how their rows' names end
CHOSEN = "chosen"  # stands in settings for a value that a choice has not settled yet

Settings = dict[str, Any]

# Names that settings had when rows ran: fingerprints of results keep them.
FORMER_NAMES = {"negatives_ratio": "negatives_per_positive"}


@dataclass(frozen=True)
class Row:
    """A line of the tables: a start, what is done to it, and a set on which it is measured.

    name:     ``START/ARM[, VARIANT]/SET``, by which comparisons call it
    title:    of the arm and its variant, for the page
    measure:  FINETUNE, HEAD or COSINE
    seeds:    of pre-training and fine-tuning together
    compared: the seeds that comparisons take; the others are for the bars alone
    pretrain: settings of launch/pretrain.py beside model, corpus, seed and folder; None: the start as it is
    finetune: settings of launch/finetune.py beside model, data, seed and folder
    share:     of the training questions
    questions: how many training questions are drawn, and at most half as many dev questions; None: all
    """

    name: str
    title: str
    start: str
    set: str
    group: str
    measure: str
    seeds: tuple[int, ...]
    compared: tuple[int, ...]
    pretrain: Settings | None
    finetune: Settings
    share: float
    identity: Settings
    questions: int | None = None

    @property
    def fingerprint(self) -> str | None:
        """Names the settings of the row; None as long as one of them is not chosen yet."""
        if CHOSEN in (*(self.pretrain or {}).values(), *self.finetune.values()):
            return None
        finetune = {FORMER_NAMES.get(name, name): value for name, value in self.finetune.items()}
        return hash_settings(self.identity | {"pretrain": self.pretrain, "finetune": finetune})


@dataclass(frozen=True)
class Choice:
    """A setting that is chosen once for all arms of a start, by the dev set of WikiQA.

    of:      "pretrain" or "finetune"
    chosen:  None as long as its rows have not run
    rows:    the rows of each value, in the order of ``values``
    """

    start: str
    of: str
    setting: str
    values: tuple[Any, ...]
    seed: int
    chosen: Any
    rows: tuple[tuple[Row, ...], ...]

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"{self.start}: {self.of}, {self.setting}"


@dataclass(frozen=True)
class Recipe:
    """content: recipe.yaml as it stands; chosen: the values of the choices that have been made, by their names."""

    content: dict[str, Any]
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> list[Choice]:
        """Those of all starts, in the order in which they are made."""
        return [self._make_choice(entry) for entry in self.content["choices"]]

    @property
    def rows(self) -> list[Row]:
        """All rows in order of need; one that stands in two groups has the seeds of both, as part of the first."""
        rows: dict[str, Row] = {}
        for group in self.content["groups"]:
            for row in self._list_rows(group):
                first = rows.get(row.name)
                if first and first.identity != row.identity:
                    raise KinspanError(f"{RECIPE.name}: {row.name} stands in two groups with different settings")
                compared = first.compared if first else row.seeds
                seeds = tuple(dict.fromkeys((*(first.seeds if first else ()), *row.seeds)))
                group_name = first.group if first else row.group
                rows[row.name] = Row(**{**vars(row), "seeds": seeds, "compared": compared, "group": group_name})
        return list(rows.values())

    def list_group_rows(self) -> list[tuple[str, list[Row]]]:
        """The rows of each group, with the group's own seeds, in order of need."""
        return [(group["name"], self._list_rows(group)) for group in self.content["groups"]]

    def _list_rows(self, group: Settings) -> list[Row]:
        return [
            self._make_row(group, arm, name, measure, questions)
            for name in group["sets"]
            for measure in group.get("measures", [FINETUNE])
            for questions in group.get("questions", [None])
            for arm in group["arms"]
        ]

    def _make_row(self, group: Settings, arm: str, set_name: str, measure: str, questions: int | None = None) -> Row:
        start, seeds = group["start"], group["seeds"]
        seeds = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
        pretrain = self._merge_pretraining(group, arm)
        finetune = self._merge_fine_tuning(group, arm, set_name)
        if measure != FINETUNE:
            finetune = {name: value for name, value in finetune.items() if name == "fresh_head"}
        told = [group.get("variant"), questions and f"{questions} questions", MEASURED.get(measure)]
        label = ", ".join(filter(None, [arm, *told]))
        title = ", ".join(filter(None, [self.content["arms"][arm]["title"], *told]))
        share = group.get("share", 1.0)
        identity = {
            "start": self.content["starts"][start].get("scratch"),
            "of": start,
            "set": set_name,
            "measure": measure,
            "share": share,
            "precision": self.content["precision"],
            "threads": self.content["threads"],
        }
        if questions:
            identity["questions"] = questions
        if fingerprints := self.content.get("fingerprints"):
            identity |= {"corpus": fingerprints["corpus"], "data": fingerprints[set_name]}
        name = f"{start}/{label}/{set_name}"
        of_row = (name, title, start, set_name, group["name"], measure, seeds, seeds, pretrain, finetune, share)
        return Row(*of_row, identity, questions)

    def _merge_pretraining(self, group: Settings, arm: str) -> Settings | None:
        content, of_arm = self.content, self.content["arms"][arm].get("pretrain")
        if of_arm is None:
            return None
        of_start = self._settings_of_start(group["start"], "pretrain")
        merged = {"precision": content["precision"], **content["pretrain"], **of_start, **of_arm}
        merged |= group.get("pretrain", {})
        if "tokens" in group:
            merged["max_tokens"] = round(merged["max_tokens"] * group["tokens"])
        return {name: value for name, value in merged.items() if value is not None}

    def _merge_fine_tuning(self, group: Settings, arm: str, set_name: str) -> Settings:
        content = self.content
        of_start = self._settings_of_start(group["start"], "finetune")
        of_arm = content["arms"][arm].get("finetune", {})
        merged = {"precision": content["precision"], **content["finetune"], **of_start, **content["sets"][set_name]}
        return {**merged, **of_arm, **group.get("finetune", {})}

    def _settings_of_start(self, start: str, of: str) -> Settings:
        """Those that the recipe gives, and those that choices settle, CHOSEN where one has not been made."""
        chosen = {
            entry["setting"]: self.chosen.get(name_choice(entry), CHOSEN)
            for entry in self.content["choices"]
            if (entry["start"], entry["of"]) == (start, of)
        }
        return {**chosen, **self.content["starts"][start][of]}

    def _make_choice(self, entry: Settings) -> Choice:
        rows = []
        for value in entry["values"]:
            group = {"name": "choices", "start": entry["start"], "seeds": [entry["seed"]], "sets": ["wikiqa"]}
            group |= {entry["of"]: {entry["setting"]: value}, "variant": f"{entry['of']} {entry['setting']} {value:g}"}
            rows.append(tuple(self._make_row(group, arm, "wikiqa", FINETUNE) for arm in entry["arms"]))
        name = name_choice(entry)
        keys = (entry["start"], entry["of"], entry["setting"], tuple(entry["values"]), entry["seed"])
        return Choice(*keys, self.chosen.get(name), tuple(rows))


def name_choice(entry: Settings) -> str:
    """Names a choice of recipe.yaml."""
    return f"{entry['start']}: {entry['of']}, {entry['setting']}"


def settle_precision(settings: Settings) -> Settings:
    """bf16 where the machine is faster in it, and fp32 elsewhere: emulated, bf16 takes nine times as long as fp32.

    A line of results says which it was. It is no setting of the row: the same row may run on either machine.
    """
    return {**settings, "precision": "auto"} if settings.get("precision") == "bf16" else settings


def hash_settings(settings: Any) -> str:
    """Names settings, so that a result is known to be theirs."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def read_recipe(path: Path = RECIPE) -> Recipe:
    """Reads the recipe. Raises KinspanError where a comparison names a row that no group has."""
    recipe = Recipe(yaml.safe_load(path.read_text(encoding="utf-8")))
    names = {row.name for row in recipe.rows}
    content = recipe.content
    named = [*content["comparisons"], content.get("primary", [])]
    if "calibration" in content:
        named.append([content["calibration"]["row"], content["calibration"]["flipped"]])
    if "rerun" in content:
        named.append([content["rerun"]["row"]])
    for rows in named:
        if unknown := [name for name in rows if name not in names]:
            raise KinspanError(f"{path.name}: {unknown[0]} is the name of no row: {', '.join(sorted(names))}")
    return recipe
