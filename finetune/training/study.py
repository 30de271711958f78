"""A study: several experiments on one or more data sets in one table, with the papers' figures beside ours."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from data_pipeline.errors import KinspanError, one_line
from data_pipeline.files import write_atomically
from finetune.data.registry import NAMES
from finetune.evaluation.bm25 import bm25_scores
from finetune.evaluation.metrics import MAP, METRICS, TITLES, Figures, means, question_metrics
from finetune.evaluation.significance import compare, compare_seeds, p_text
from finetune.reports.study_report import Entry, write_page
from pretrain.runtime.engine import read_launcher_variables
from pretrain.runtime.settings import convert_setting
from pretrain.runtime.stop import listen_for_stop

from .config import FinetuneConfig, check
from .experiment import load_figures, run_experiment
from .stages import load_data

RESULTS = "study.json"
# A study's own: launch/study.py has flags for them, and every row an output folder.
SETTINGS = {f.name for f in fields(FinetuneConfig)} - {"data", "transfer", "output_dir", "local_rank"}
PAPERS_NAME = {"jacana": "trecqa"}  # one data set in two forms
ROW_KEYS = {"name", "settings", "paper", "tanda", "pretrain"}
PRETRAINED, RELEASE = "pretrained", "release"  # folders: of a study, of a row's pre-training
# A stage before fine-tuning, from its settings and its folder. They are checked at once, and what is returned runs the
# stage, or finds it finished; after that its model is in the folder's ``release``.
StageRunner = Callable[[dict[str, Any], Path], Callable[[], None]]
STUDY_KEYS = {"title", "source", "settings", "rows", "about"}


@dataclass(frozen=True)
class Row:
    """One experiment of a study.

    settings: as of launch/finetune.py, over those of the study
    tanda:    whether it transfers from ``--transfer`` first
    paper:    the paper's figures by data set and metric
    pretrain: settings of launch/pretrain.py; the row's model is then what this makes of it
    """

    name: str
    settings: dict[str, Any]
    tanda: bool
    paper: dict[str, dict[str, float]]
    pretrain: dict[str, Any] | None = None

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name).strip("-").lower()


@dataclass(frozen=True)
class Study:
    """What a recipe says; ``source`` names the paper's table, ``about`` what to keep in mind."""

    title: str
    source: str
    about: str
    settings: dict[str, Any]
    rows: list[Row]


def read_study(path: Path) -> Study:
    """Reads a study's YAML file. Raises KinspanError, naming the file and the line of the structure."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KinspanError(f"--study {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise KinspanError(f"--study {path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict) or not content.get("rows") or not isinstance(content["rows"], list):
        raise KinspanError(f"--study {path} must have a title and a list of rows; see launch/recipes/tanda-noise.yaml")
    _refuse(path, "the study", content, STUDY_KEYS)
    _refuse(path, "settings", content.get("settings") or {}, SETTINGS)
    rows = [_row(path, entry) for entry in content["rows"]]
    for row in rows:
        if not row.folder or [other.folder for other in rows].count(row.folder) > 1:
            raise KinspanError(f"--study {path}: row {row.name}: its letters and digits must set it apart, as a folder")
    title, source, about = (str(content.get(key, "")) for key in ("title", "source", "about"))
    return Study(title or path.stem, source, about, content.get("settings") or {}, rows)


def _row(path: Path, entry: Any) -> Row:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise KinspanError(f"--study {path}: a row needs a name: {entry}")
    where = f"row {entry['name']}"
    _refuse(path, where, entry, ROW_KEYS)
    settings, paper, tanda = entry.get("settings") or {}, entry.get("paper") or {}, entry.get("tanda", False)
    _refuse(path, where, settings, SETTINGS)
    _refuse(path, f"{where}: paper", paper, set(NAMES) | {"hub"})
    for name, figures in paper.items():
        _refuse(path, f"{where}: paper: {name}", figures, set(METRICS))
        for metric, figure in figures.items():
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure <= 1:
                raise KinspanError(f"--study {path}: {where}: paper: {name}: {metric} {figure}: must be from 0 to 1")
    if not isinstance(tanda, bool):
        raise KinspanError(f"--study {path}: {where}: tanda {tanda}: must be true or false")
    pretrain = entry.get("pretrain")
    if not (pretrain is None or (isinstance(pretrain, dict) and all(isinstance(key, str) for key in pretrain))):
        raise KinspanError(f"--study {path}: {where}: pretrain must be lines of `name: value`")
    return Row(str(entry["name"]), settings, tanda, paper, pretrain)


def _refuse(path: Path, where: str, given: Any, known: set[str]) -> None:
    if not isinstance(given, dict):
        raise KinspanError(f"--study {path}: {where} must be lines of `name: value`")
    for key in given:
        if key not in known:
            raise KinspanError(f"--study {path}: {where} has {key!r}, which is none of {', '.join(sorted(known))}")


def run_study(
    study: Study,
    specs: list[str],
    output: Path,
    overrides: dict[str, Any],
    transfer: str | None,
    say: Callable[[str], None] = print,
    stages: dict[str, StageRunner] | None = None,
) -> dict[str, Any]:
    """Runs every row on every data set, and writes ``study.json`` and ``report.html``.

    specs:     data sets such as wikiqa=FOLDER
    overrides: settings over those of the study; one that a row sets itself is refused: it makes the row what it is
    stages:    what runs the stages before fine-tuning, by name: ``pretrain`` for rows that have such a block

    The same call again resumes. Raises KinspanError for what the user can mend.
    """
    if transfer is None and any(row.tanda for row in study.rows):
        raise KinspanError(f"{study.title}: the rows of TANDA need --transfer, such as asnq=FOLDER")
    for spec in specs:
        if [_set_name(other) for other in specs].count(_set_name(spec)) > 1:
            raise KinspanError(f"--data {spec}: two of {_set_name(spec)}=: give each an --output_dir of its own")
    for name in overrides:
        if own := [row.name for row in study.rows if name in row.settings]:
            rows_named = ", ".join(own[:3]) + (" and more" if len(own) > 3 else "")
            raise KinspanError(f"--set {name}: it is what sets rows apart ({rows_named}): change a copy of the study")
    # Each row's settings are checked before the first one runs, so that a wrong one costs no hours.
    planned = [[(row, _config(study, row, spec, output, overrides, transfer)) for row in study.rows] for spec in specs]
    pretrainings = _prepare_pretrainings(study, output, overrides, stages or {})
    say = say if read_launcher_variables()[0] == 0 else _silent
    for name, run_stage in pretrainings.items():
        say(f"\n== {name}: pre-training")
        run_stage()
    tables = []
    hours = [config.max_hours for rows in planned for _, config in rows if config.max_hours is not None]
    with listen_for_stop(min(hours, default=None)):
        for spec, rows in zip(specs, planned, strict=True):
            experiments = []
            for row, config in rows:
                say(f"\n== {row.name}: {config.output_dir}")
                transfers = output / _set_name(spec) / "transfers"
                experiments.append(run_experiment(config, say, transfers))
            tables.append(_table(study, spec, rows, experiments, output / _set_name(spec) / "report.html"))
    results = {"title": study.title, "source": study.source, "about": study.about, "tables": tables}
    if read_launcher_variables()[0] == 0:
        write_atomically(output / RESULTS, json.dumps(results, indent=1) + "\n")
    say(as_text(results))
    return results


def _prepare_pretrainings(
    study: Study, output: Path, overrides: dict[str, Any], stages: dict[str, StageRunner]
) -> dict[str, Callable[[], None]]:
    """Of each row that pre-trains, by name, what does it. Each starts from the row's model."""
    prepared = {}
    for row in study.rows:
        if row.pretrain is None:
            continue
        if "pretrain" not in stages:
            raise KinspanError(f"{study.title}: {row.name}: run_study needs a runner for its pretrain block")
        start = {**study.settings, **row.settings, **overrides}.get("model")
        settings = {"model": start, **row.pretrain}
        try:
            prepared[row.name] = stages["pretrain"](settings, output / PRETRAINED / row.folder)
        except KinspanError as error:
            raise KinspanError(f"{study.title}: {row.name}: pretrain: {error}") from error
    return prepared


def _silent(_: str) -> None:
    pass


def _set_name(spec: str) -> str:
    return spec.partition("=")[0]


def _config(
    study: Study, row: Row, spec: str, output: Path, overrides: dict[str, Any], transfer: str | None
) -> FinetuneConfig:
    settings = {**study.settings, **row.settings, **overrides}
    settings["transfer"] = transfer if row.tanda else None
    of_a_name = _set_name(spec) not in ("files", "hub")  # there are many of these
    if row.tanda and transfer and (transfer == spec or (of_a_name and _set_name(transfer) == _set_name(spec))):
        raise KinspanError(f"--transfer {transfer}: it is the target's own data set")
    settings["output_dir"] = str(output / _set_name(spec) / row.folder)
    settings["data"] = spec
    if row.pretrain is not None:
        settings["model"] = str(output / PRETRAINED / row.folder / RELEASE)
    try:
        config = FinetuneConfig(
            **{name: convert_setting(FinetuneConfig, name, value) for name, value in settings.items()}
        )
        check(config)
    except KinspanError as error:
        raise KinspanError(f"{study.title}: {row.name}: {error}") from error
    return config


def _table(
    study: Study, spec: str, rows: list[tuple[Row, FinetuneConfig]], experiments: list[dict[str, Any]], page: Path
) -> dict[str, Any]:
    """The comparison on one data set: BM25 first, then each row, tested against the study's first; and its page."""
    first = rows[0][1]
    data = load_data(next((config for _, config in rows if config.transfer), first))
    test = data.test
    figures = [load_figures(Path(config.output_dir), test, config.seeds) for _, config in rows]
    bm25 = means(question_metrics(test, bm25_scores(test)))
    lines: list[dict[str, Any]] = [{"name": "BM25", **{m: {"mean": bm25[m], "sd": None} for m in METRICS}, "p": None}]
    entries = []
    for (row, config), experiment, seeds in zip(rows, experiments, figures, strict=True):
        p = None if seeds is figures[0] else _against(seeds, figures[0])
        as_transferred = sum(run["run"]["best_step"] == 0 for run in experiment["seeds"]) if row.tanda else 0
        paper = row.paper.get(PAPERS_NAME.get(_set_name(spec), _set_name(spec)), {})
        line = {"name": row.name, **experiment["test"], "p": p, "paper": paper, "seeds": config.seeds}
        line |= {"label_noise": config.label_noise, "clean": _clean_row(config, rows)}
        lines.append({**line, "as_transferred": as_transferred if config.epochs else 0})
        entries.append(Entry(row.name, config, seeds, _doubt(p) if p else None, paper, row.tanda))
    splits = [(data.train, first.train_filter), (data.dev, first.eval_filter), (test, first.eval_filter)]
    if data.transfer is not None:
        splits.insert(0, (data.transfer, first.train_filter))
    if read_launcher_variables()[0] == 0:
        notes = [line for line in (study.source, study.about) if line]
        write_page(page, f"{study.title}: {_set_name(spec)}", [*notes, *data.notes], splits, entries)
    return {
        "data": _set_name(spec),
        "questions": test.num_questions,
        "pairs": test.num_pairs,
        "report": str(page),
        "rows": lines,
    }


def _clean_row(config: FinetuneConfig, rows: list[tuple[Row, FinetuneConfig]]) -> str | None:
    """The row that differs by nothing but that it flips no labels."""
    clean = replace(config, label_noise=0.0)
    for row, other in rows:
        if config.label_noise and replace(other, output_dir=config.output_dir) == clean:
            return row.name
    return None


def _against(seeds: list[Figures], first: list[Figures]) -> dict[str, float]:
    """p of the difference in MAP: over questions (of each the mean over seeds), and over seeds."""
    ours, theirs = (np.stack([of_seed[MAP] for of_seed in runs]) for runs in (seeds, first))
    over_questions = compare(ours, theirs)
    out = {
        "difference": over_questions.difference,
        "t_test": over_questions.t_test,
        "randomisation": over_questions.randomisation,
    }
    if len(ours) > 1 and len(theirs) > 1:
        out["over_seeds"] = compare_seeds(ours.mean(axis=1), theirs.mean(axis=1))
    return out


def _doubt(p: dict[str, float]) -> float:
    """The greater p of those over questions and over seeds: the one does not see that seeds differ, nor the other
    that questions do."""
    return max(p["t_test"], p.get("over_seeds", 0.0))


def as_text(results: dict[str, Any]) -> str:
    """The tables, the papers' figures beside ours."""
    lines = [f"\n{results['title']}" + (f" ({results['source']})" if results["source"] else "")]
    for table in results["tables"]:
        width = max(len(row["name"]) for row in table["rows"]) + 2
        lines += ["", f"{table['data']}: {table['questions']:,} test questions, {table['pairs']:,} candidates"]
        lines.append(" " * width + "".join(f"{TITLES[m]:>18}" for m in METRICS) + "   p of MAP: t-test, random, seeds")
        for row in table["rows"]:
            lines.append(f"{row['name']:<{width}}" + "".join(_cell(row[m]) for m in METRICS) + _p(row["p"]))
            if row.get("paper"):
                cells = "".join(f"{row['paper'][m]:.3f}".rjust(18) if m in row["paper"] else " " * 18 for m in METRICS)
                lines.append(f"{'  paper':<{width}}{cells}".rstrip())
        lines += [*_drops(table), *_kept(table), f"page: {table['report']}"]
    return "\n".join(lines)


def _cell(figure: dict[str, float | None]) -> str:
    sd = f" ({figure['sd']:.4f})" if figure["sd"] is not None else " " * 9
    return f"{figure['mean']:.4f}{sd}".rjust(18)


def _p(p: dict[str, float] | None) -> str:
    if p is None:
        return ""
    chances = [p_text(p[test]) for test in ("t_test", "randomisation", "over_seeds") if test in p]
    return f"   {p['difference']:+.4f}: {', '.join(chances)}"


def _kept(table: dict[str, Any]) -> list[str]:
    """Which rows of TANDA are, in part, the ranker as it was transferred: adapting it did no better on the dev set."""
    return [
        f"{row['name']}: {row['as_transferred']} of {row['seeds']} seeds kept the transferred ranker, which no update "
        "of the adaptation beat on the dev set"
        for row in table["rows"]
        if row.get("as_transferred")
    ]


def _drops(table: dict[str, Any]) -> list[str]:
    """Of rows with flipped labels, the drop of MAP from the same settings without (TANDA, table 5)."""
    by_name = {row["name"]: row for row in table["rows"]}
    lines = []
    for row in table["rows"]:
        base = by_name.get(row.get("clean"))
        if base and base[MAP]["mean"]:
            drop = 100 * (1 - row[MAP]["mean"] / base[MAP]["mean"])
            theirs = ""
            if MAP in row["paper"] and MAP in base["paper"]:
                theirs = f" (paper: {100 * (1 - row['paper'][MAP] / base['paper'][MAP]):.2f}%)"
            lines.append(f"{row['name']}: MAP drops by {drop:.2f}%{theirs}")
    return lines
