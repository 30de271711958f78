"""A study: rows of a YAML file, each an experiment of fine-tuning, in one table beside a paper's figures.

A row may begin with stages, each of which trains the model of the stage before: they are settings of kinspan pretrain,
or of kinspan finetune on another data set. A stage's folder is named by a hash of all that it depends on, so that rows
share equal stages, and no stage runs twice.
"""

import json
import logging
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.default_model import default_model, name_installed, resolve_model
from data_pipeline.core.errors import KinspanError, prefix_errors
from data_pipeline.core.files import read_yaml, write_atomically
from data_pipeline.core.settings import convert_setting, get_identity_settings, make_config
from finetune.data.registry import NAMES, expect_data
from finetune.evaluation.bm25 import ABOUT, BM25, score_bm25
from finetune.evaluation.comparison import format_mean
from finetune.evaluation.metrics import MAP, TITLES, compute_means, compute_question_metrics
from finetune.evaluation.significance import compare_rows, compute_interval, format_p
from finetune.ranking.kinds import BI_ENCODER, find_kind
from finetune.ranking.model import score_answers
from finetune.training.card import AS_STARTED, AS_TRANSFERRED
from finetune.training.config import CONTRASTIVE, FinetuneConfig, check, choose_metrics, list_metrics, list_seeds
from finetune.training.experiment import read_figures, run_experiment
from finetune.training.stages import BEST, fingerprint_identity, load_data, name_set
from pretrain.engine.stop import listen_for_stop
from pretrain.engine.world import read_launcher_variables

log = logging.getLogger(__name__)

RESULTS = "study.json"
PRETRAIN, FINETUNE = "pretrain", "finetune"  # kinds of stages
RELEASE = "release"  # the model's folder within that of a pre-training
SEED = 1  # seed of a fine-tuning stage, which serves all seeds of its row
ZERO_SHOT = "zero-shot cosine"  # name of the row of the untrained base model
WIDTH = 120  # columns of the notes below the tables

# Without those that the command sets: kinspan study has flags for them, and every row has an output folder.
SETTINGS = {f.name for f in fields(FinetuneConfig)} - {
    *("data", "transfer", "transfer_targets", "transfer_dir", "output_dir", "local_rank")
}
COMMON = {"eval_filter", "columns"}  # the same in all rows, which are compared question by question
ROW_KEYS = {"name", "settings", "paper", "tanda", "stages"}
STUDY_KEYS = {"title", "source", "settings", "rows", "about", "zero_shot", "where"}
STAGE_KEYS = (SETTINGS | {"data"}) - {"seeds", "seed", "train_data", "model", *COMMON}  # of a fine-tuning stage

Settings = dict[str, Any]
# Checks a pre-training's settings, and returns a function that runs it in the folder, or finds it finished.
StageRunner = Callable[[Settings, Path], Callable[[], None]]


@dataclass(frozen=True)
class StudyRow:
    """An experiment.

    settings: settings of kinspan finetune, which take precedence over the study's
    paper:    a paper's figures by data set and metric
    stages:   kind and settings of each stage before the row's own fine-tuning
    tanda:    whether the row transfers from another data set first
    """

    name: str
    settings: Settings
    paper: Mapping[str, Mapping[str, float]]
    stages: tuple[tuple[str, Settings], ...]
    tanda: bool

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name).strip("-").lower()


@dataclass(frozen=True)
class Study:
    """The content of a study's file.

    source:    the table of a paper that the study reproduces
    about:     a note for readers of the results, printed below the tables
    settings:  settings of all rows
    zero_shot: whether the table has a row for the first row's base model, as an untrained bi-encoder
    where:     values of each ``$name`` in the stages, unless the command gives others
    """

    title: str
    source: str
    about: str
    settings: Settings
    rows: list[StudyRow]
    zero_shot: bool = False
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyContext:
    """Arguments of a study's command.

    specs:     data sets such as wikiqa=FOLDER
    overrides: settings that take precedence over the study's
    transfer:  the data set that rows of TANDA transfer from
    """

    study: Study
    specs: list[str]
    output: Path
    overrides: Settings = field(default_factory=dict)
    transfer: str | None = None
    pretrain: StageRunner | None = None
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStage:
    """A stage with checked settings; its weights will be in ``model``."""

    title: str
    model: Path
    run: Callable[[], Any]


@dataclass(frozen=True)
class PlannedRow:
    """A row on one data set; ``start`` is the model that its first stage begins with."""

    row: StudyRow
    start: str
    config: FinetuneConfig
    stages: list[PlannedStage]


def read_study(path: Path) -> Study:
    """Reads a study's file. Raises KinspanError, naming the file and the row."""
    content = read_yaml(path, f"--study {path}")
    with prefix_errors(f"--study {path}"):
        _check_keys("the study", content, STUDY_KEYS)
        _check_keys("settings", content.get("settings") or {}, SETTINGS)
        if not isinstance(content.get("rows"), list) or not content["rows"]:
            raise KinspanError("rows must be a list; see launch/recipes/tanda-noise.yaml")
        rows = [_parse_row(entry) for entry in content["rows"]]
        folders = [row.folder for row in rows]
        for row in rows:
            if not row.folder or folders.count(row.folder) > 1:
                raise KinspanError(f"row {row.name}: its letters and digits must set it apart, as a folder")
        _check_bool("zero_shot", zero_shot := content.get("zero_shot", False))
        where = content.get("where") or {}
        _check_keys("where", where, set(where))
    title, source, about = (str(content.get(key, "")) for key in ("title", "source", "about"))
    names = {str(name): str(value) for name, value in where.items()}
    return Study(title or path.stem, source, about, content.get("settings") or {}, rows, zero_shot, names)


def _parse_row(entry: Any) -> StudyRow:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise KinspanError(f"a row needs a name: {entry}")
    place = f"row {entry['name']}"
    _check_keys(place, entry, ROW_KEYS)
    settings, paper = entry.get("settings") or {}, entry.get("paper") or {}
    _check_keys(place, settings, SETTINGS - COMMON)
    _check_keys(f"{place}: paper", paper, set(NAMES))
    for name, figures in paper.items():
        _check_keys(f"{place}: paper: {name}", figures, set(TITLES))
        for metric, figure in figures.items():
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure <= 1:
                raise KinspanError(f"{place}: paper: {name}: {metric} {figure}: must be from 0 to 1")
    _check_bool(f"{place}: tanda", tanda := entry.get("tanda", False))
    stages = entry.get("stages") or []
    if not isinstance(stages, list):
        raise KinspanError(f"{place}: stages must be a list, such as - pretrain: {{...}}")
    return StudyRow(str(entry["name"]), settings, paper, tuple(_parse_stage(place, stage) for stage in stages), tanda)


def _parse_stage(place: str, entry: Any) -> tuple[str, Settings]:
    if not isinstance(entry, dict) or len(entry) != 1 or not set(entry) <= {PRETRAIN, FINETUNE}:
        raise KinspanError(f"{place}: stages: {entry}: must be pretrain or finetune, with its settings")
    ((kind, settings),) = entry.items()
    known = STAGE_KEYS if kind == FINETUNE else set(settings if isinstance(settings, dict) else ())
    _check_keys(f"{place}: stages: {kind}", settings, known)
    if kind == FINETUNE and "data" not in settings:
        raise KinspanError(f"{place}: stages: finetune needs data, such as data: askubuntu_qa=FOLDER")
    return kind, settings


def _check_keys(place: str, given: Any, known: set[str]) -> None:
    """Raises KinspanError unless ``given`` is a mapping with only known keys."""
    if not isinstance(given, dict):
        raise KinspanError(f"{place} must be lines of `name: value`")
    if unknown := [key for key in given if key not in known or not isinstance(key, str)]:
        raise KinspanError(f"{place} has {unknown[0]!r}, which is none of {', '.join(sorted(known))}")


def _check_bool(place: str, given: Any) -> None:
    if not isinstance(given, bool):
        raise KinspanError(f"{place} {given}: must be true or false")


def make_finetune_config(settings: Mapping[str, Any]) -> FinetuneConfig:
    """Returns settings, checked and of the right types. Raises KinspanError, naming the setting."""
    config = make_config(FinetuneConfig, settings)
    check(config)
    return config


def plan_rows(context: StudyContext) -> list[PlannedRow]:
    """Returns all rows on all data sets. Raises KinspanError, naming the row, before anything runs."""
    study, specs = context.study, context.specs
    if (context.transfer is None) == any(row.tanda for row in study.rows):
        raise KinspanError(f"--transfer is for studies with rows of TANDA, and needed there: {study.title}")
    if len({name_set(spec) for spec in specs}) < len(specs):
        raise KinspanError(f"--data {' '.join(specs)}: two have one name: give each an --output_dir of its own")
    for name in context.overrides:
        for row in study.rows:
            if name in row.settings or any(kind == FINETUNE and name in settings for kind, settings in row.stages):
                raise KinspanError(f"--set {name}: the row {row.name} sets it itself: change a copy of the file")
    planned = []
    for spec in specs:
        for row in study.rows:
            with prefix_errors(f"{study.title}: {row.name}"):
                planned.append(_plan_row(context, row, spec))
    if len({row.config.loss for row in planned}) > 1:
        raise KinspanError(f"{study.title}: loss differs between rows, which are in one table")
    return planned


def _plan_row(context: StudyContext, row: StudyRow, spec: str) -> PlannedRow:
    study, transfer = context.study, context.transfer if row.tanda else None
    is_public = name_set(spec) not in ("files", "hub")  # these names do not identify a data set
    if transfer and (transfer == spec or (is_public and name_set(transfer) == name_set(spec))):
        raise KinspanError(f"--transfer {transfer}: it is the target's own data set")
    settings = {**study.settings, **row.settings, **context.overrides, "data": spec}
    settings |= {"transfer": transfer, "transfer_targets": context.specs}
    settings |= {"transfer_dir": str(context.output / "transfers")}
    settings |= {"output_dir": str(context.output / name_set(spec) / row.folder)}
    config = make_finetune_config(settings)
    expect_data(config.train_data)
    start = str(resolve_model(config.model) if config.model else default_model())
    stages: list[PlannedStage] = []
    history: list[Any] = [name_installed(start)]
    for kind, stage_settings in row.stages:
        filled = fill_names(stage_settings, {**study.where, **context.where})
        model = str(stages[-1].model) if stages else start
        stages.append(_plan_stage(context, spec, kind, filled, model, history))
    return PlannedRow(row, start, replace(config, model=str(stages[-1].model)) if stages else config, stages)


def _plan_stage(
    context: StudyContext, spec: str, kind: str, settings: Settings, model: str, history: list[Any]
) -> PlannedStage:
    """Returns the stage, and adds it to ``history``, a hash of which names its folder and those of later stages."""

    def name_folder(*parts: Any) -> Path:
        history.append([kind, *parts])
        return context.output / "stages" / f"{kind}-{fingerprint_identity(history)}"

    if kind == PRETRAIN:
        if context.pretrain is None:
            raise KinspanError("stages: this study was started without a runner of pretrain")
        settings = {"model": model, **settings}
        folder = name_folder({**settings, "model": name_installed(settings["model"])})
        return PlannedStage(f"{kind} {folder}", folder / RELEASE, context.pretrain(settings, folder))
    common = {**context.study.settings, **context.overrides}
    fixed = {"data": spec, "model": model, "seed": [SEED], "output_dir": "-"}
    config = make_finetune_config({**common, "train_data": settings["data"], **settings, **fixed})
    expect_data(config.train_data)
    of_run = {k: v for k, v in get_identity_settings(config).items() if k != "precision"}
    folder = name_folder(config.data, config.train_data, of_run)
    config.output_dir = str(folder)
    run = partial(run_experiment, config, baselines=False)
    return PlannedStage(f"{kind} {folder}", folder / f"seed-{SEED}" / BEST, run)


def fill_names(value: Any, names: Mapping[str, str]) -> Any:
    """Returns a value of a study's file with each ``$name`` in its strings replaced."""
    if isinstance(value, dict):
        return {key: fill_names(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [fill_names(part, names) for part in value]
    if not isinstance(value, str):
        return value
    if missing := [name for name in re.findall(r"\$(\w+)", value) if name not in names]:
        raise KinspanError(f"${missing[0]} is not known: give --where {missing[0]}=...")
    return re.sub(r"\$(\w+)", lambda match: str(names[match[1]]), value)


def run_study(context: StudyContext) -> Settings:
    """Runs or resumes every row on every data set, writes ``study.json`` and returns its content. Raises Stopped if a
    signal or ``max_hours`` ended it."""
    study, rows = context.study, plan_rows(context)
    if study.zero_shot and find_kind(rows[0].start) != BI_ENCODER:
        raise KinspanError(f"--study: zero_shot needs a model that embeds texts, and {rows[0].start} is none")
    hours = [row.config.max_hours for row in rows]
    hours += [settings.get("max_hours") for row in study.rows for _, settings in row.stages]
    limits = [convert_setting(FinetuneConfig, "max_hours", value) for value in hours if value is not None]
    results, trained = [], set()
    with listen_for_stop(min(limits, default=None)):
        for row in rows:
            for stage in row.stages:
                if stage.model not in trained:
                    log.info("\n== %s: %s", row.row.name, stage.title)
                    stage.run()
                    trained.add(stage.model)
            log.info("\n== %s: %s", row.row.name, row.config.output_dir)
            results.append(run_experiment(row.config, baselines=False))
    done = list(zip(rows, results, strict=True))
    tables = [
        _summarize_set(context, [(row, result) for row, result in done if row.config.data == spec])
        for spec in context.specs
    ]
    summary = {"title": study.title, "source": study.source, "about": study.about, "tables": tables}
    if read_launcher_variables()[0] == 0:
        write_atomically(context.output / RESULTS, json.dumps(summary, indent=1) + "\n")
    return summary


def _summarize_set(context: StudyContext, done: list[tuple[PlannedRow, Settings]]) -> Settings:
    """Returns the table of one data set, each row tested against the study's first.

    done: rows with what ``run_experiment`` returned for them
    """
    rows, first = [row for row, _ in done], done[0][0].config
    measured = load_data(first).measured[-1]
    shown, metrics = choose_metrics(first.loss), list_metrics(first)
    figures = [read_figures(row.config, measured.split) for row in rows]
    untrained = {BM25: score_bm25(measured)}
    if context.study.zero_shot:
        untrained[ZERO_SHOT] = score_answers(rows[0].start, measured)
    baselines = {name: compute_question_metrics(measured, scores, metrics) for name, scores in untrained.items()}
    runs = [*figures, *([values] for values in baselines.values())]
    main_metric = [np.stack([seed[shown[0]] for seed in seeds]) for seeds in runs]
    lines = [_summarize_row(row, result, measured.split, rows) for row, result in done]
    lines += [
        {"name": name, **{m: {"mean": v, "sd": None} for m, v in compute_means(values).items()}}
        for name, values in baselines.items()
    ]
    for line, test, values in zip(lines, compare_rows(main_metric), main_metric, strict=True):
        line["p"] = test
        if first.loss == CONTRASTIVE:
            line["interval"] = compute_interval(values.mean(axis=0))
    return {
        "data": name_set(first.data),
        "split": measured.split,
        "questions": measured.num_questions,
        "pairs": measured.num_pairs,
        "metrics": list(shown),
        "rows": lines[len(rows) :] + lines[: len(rows)],  # the untrained rows come first
    }


def _summarize_row(planned: PlannedRow, result: Settings, split: str, rows: list[PlannedRow]) -> Settings:
    """Returns a row's line of the table.

    "clean" names the row with the same settings and no flipped labels; "unimproved" counts the seeds that no update
    of the last training improved.
    """
    row, config = planned.row, planned.config
    wanted = replace(config, label_noise=0.0)
    clean = [other.row.name for other in rows if replace(other.config, output_dir=config.output_dir) == wanted]
    return {
        "name": row.name,
        **result[split],
        "paper": dict(row.paper.get(name_set(config.data), {})),
        "seeds": len(list_seeds(config)) if config.epochs else 0,
        "clean": next(iter(clean), None) if config.label_noise else None,
        "tanda": row.tanda,
        "unimproved": sum(run["run"]["best_step"] == 0 for run in result["seeds"]) if config.epochs else 0,
        "shares_stages": bool(row.stages or row.tanda) and len(list_seeds(config)) > 1,
    }


def format_study(results: Settings) -> str:
    """Returns the tables of a study; ``results`` is what ``run_study`` returns."""
    lines = [f"\n{results['title']}" + (f" ({results['source']})" if results["source"] else "")]
    for table in results["tables"]:
        lines += ["", *_format_table(table)]
    return "\n".join([*lines, *(["", *textwrap.wrap(results["about"], WIDTH)] if results["about"] else [])])


def _format_table(table: Settings) -> list[str]:
    rows, metrics = table["rows"], table["metrics"]
    width = max(len(row["name"]) for row in rows) + 2
    lines = [f"{table['data']}: {table['questions']:,} {table['split']} questions, {table['pairs']:,} candidates"]
    head = "".join(f"{TITLES[m]:>18}" for m in metrics)
    lines.append(f"{' ' * width}{head}   p of {TITLES[metrics[0]]}, corrected")
    for row in rows:
        test, cells = row["p"], "".join(f"{format_mean(row[m]):>18}" for m in metrics)
        p = f"   {test['difference']:+.4f}: {format_p(test['p'])}, {format_p(test['corrected'])}" if test else ""
        lines.append(f"{row['name']:<{width}}{cells}{p}")
        if paper := row.get("paper"):
            cells = "".join(f"{paper[m]:.3f}".rjust(18) if m in paper else " " * 18 for m in metrics)
            lines.append(f"{'  paper':<{width}}{cells}".rstrip())
    if "interval" in rows[0]:
        cells = "; ".join(f"{row['name']} {row['interval'][0]:.3f} to {row['interval'][1]:.3f}" for row in rows)
        lines += textwrap.wrap(f"95% intervals of {TITLES[metrics[0]]} over questions: {cells}", WIDTH)
    tested = sum(row["p"] is not None for row in rows)
    lines += [f"corrected: by Holm's method for {tested} rows against the first"] if tested > 1 else []
    lines.append(ABOUT)
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        name, seeds = row["name"], row.get("seeds", 0)
        if seeds > 1 and row[metrics[0]]["sd"] is None:
            lines.append(f"{name}: its {seeds} seeds have the same figures, and count as one")
        if seeds == 1 and len(rows) > 1:
            lines.append(f"{name}: one seed: p leaves out the chance of training")
        if row.get("shares_stages"):
            lines.append(f"{name}: what came before fine-tuning ran once for all seeds")
        if (clean := by_name.get(row.get("clean"))) and clean[MAP]["mean"]:
            lines.append(f"{name}: MAP drops by {_format_drop(row[MAP]['mean'], clean[MAP]['mean'])}")
            if MAP in row["paper"] and MAP in clean["paper"]:
                lines[-1] += f" (paper: {_format_drop(row['paper'][MAP], clean['paper'][MAP])})"
        if row.get("unimproved"):
            reason = AS_TRANSFERRED if row["tanda"] else AS_STARTED
            lines.append(f"{name}: {row['unimproved']} of {seeds} seeds: {reason}")
    return lines


def _format_drop(value: float, clean: float) -> str:
    return f"{100 * (1 - value / clean):.2f}%"
