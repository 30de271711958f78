"""A study runs several experiments on one or more data sets, and shows them in one table beside a paper's figures."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.overlap import find_unseen
from finetune.evaluation.bm25 import ABOUT, BM25, score_bm25
from finetune.evaluation.metrics import Figures, compute_means, compute_question_metrics
from finetune.evaluation.significance import compare_rows, compute_interval
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.score import score_answers
from finetune.reports.study_report import ZERO_SHOT, Entry, write_page
from finetune.reports.study_table import format_study
from finetune.training.config import CONTRASTIVE, FinetuneConfig, choose_metrics, list_metrics, list_seeds
from finetune.training.experiment import read_figures, run_experiment, summarize_seeds
from finetune.training.stages import Data, load_data, name_set
from pretrain.modeling.default_model import default_model
from pretrain.runtime.settings import convert_setting
from pretrain.runtime.stop import listen_for_stop
from pretrain.runtime.world import read_launcher_variables

from .chains import RELEASE, PlannedStage, StageRunner, fill_names, plan_stages
from .study_file import StageOfRow, Study, StudyRow, make_config

RESULTS, PAGE = "study.json", "report.html"
PRETRAINED, TRANSFERS = "pretrained", "transfers"  # folders of a study
PAPERS_NAME = {"jacana": "trecqa"}  # how papers call a data set that we have in two forms


@dataclass(frozen=True)
class PlannedRow:
    """A row of a study on one data set, with all its settings, and the stages before it.

    start:    the model that all of it begins with, as the settings name it
    of_seeds: with ``repeat_stages``, the row once more for each of its seeds, with stages of its own
    """

    row: StudyRow
    start: str | None
    config: FinetuneConfig
    stages: list[PlannedStage]
    of_seeds: tuple["PlannedRow", ...] = ()

    @property
    def shares_stages(self) -> bool:
        """Whether what comes before the row's own training ran once for several seeds."""
        trains_before = self.row.pretrain is not None or self.row.stages or self.row.tanda
        return bool(trains_before) and not self.of_seeds and len(list_seeds(self.config)) > 1


def run_study(
    study: Study,
    specs: list[str],
    output: Path,
    overrides: dict[str, Any],
    transfer: str | None,
    say: Callable[[str], None] = print,
    stages: Mapping[str, StageRunner] | None = None,
    where: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs every row on every data set, and writes ``study.json`` and, for each data set, ``report.html``.

    specs:     data sets such as wikiqa=FOLDER
    overrides: settings that take precedence over the study's. One that a row sets itself is refused, since it is what
               tells the row from the others
    transfer:  what the rows of TANDA transfer from
    stages:    what runs the stages before fine-tuning, by name: ``pretrain`` for rows that have such a block
    where:     what each ``$name`` in the stages of rows stands for; it takes precedence over the study's

    The same call again resumes. Raises KinspanError for what the user can mend.
    """
    _check_request(study, specs, overrides, transfer)
    if study.repeat_stages:
        study = replace(study, rows=[unfold_pretraining(row) for row in study.rows])
    leads = read_launcher_variables()[0] == 0
    say = say if leads else _be_silent
    # The settings of every row are checked before the first row runs, so that a wrong one costs no hours.
    planned = [
        [
            _plan_row(study, row, spec, specs, output, overrides, transfer, stages or {}, where or {}, say)
            for row in study.rows
        ]
        for spec in specs
    ]
    if study.zero_shot:
        _check_embeds(study, planned[0][0].start or default_model())
    pretrainings = _prepare_pretrainings(study, output, overrides, stages or {})
    hours = [row.config.max_hours for rows in planned for row in rows if row.config.max_hours is not None]
    with listen_for_stop(min([*hours, *_list_pretraining_hours(study)], default=None)):
        for name, run_stage in pretrainings.items():
            say(f"\n== {name}: pre-training")
            run_stage()
        tables = [_run_set(study, spec, rows, output, say, leads) for spec, rows in zip(specs, planned, strict=True)]
    results = {"title": study.title, "source": study.source, "about": study.about, "tables": tables}
    if leads:
        write_atomically(output / RESULTS, json.dumps(results, indent=1) + "\n")
    say(format_study(results))
    return results


def _run_set(
    study: Study, spec: str, rows: list[PlannedRow], output: Path, say: Callable[[str], None], leads: bool
) -> dict[str, Any]:
    """Runs every row on one data set, and returns its table. ``leads``: whether this rank writes the page."""
    folder = output / name_set(spec)
    experiments = []
    done: set[Path] = set()
    for row in rows:
        found = [_run_row(one, done, say) for one in row.of_seeds or (row,)]
        experiments.append(join_seeds(found))
    return _summarize_set(study, spec, rows, experiments, folder / PAGE, leads)


def _run_row(row: PlannedRow, done: set[Path], say: Callable[[str], None]) -> dict[str, Any]:
    """Runs the stages of a row that are not ``done``, then its own training."""
    for stage in row.stages:
        if stage.model not in done:  # rows share what they have in common
            say(f"\n== {row.row.name}: {stage.title}: {stage.model}")
            stage.run()
            done.add(stage.model)
    say(f"\n== {row.row.name}: {row.config.output_dir}")
    return run_experiment(row.config, say, baselines=False)


def join_seeds(experiments: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the results of one row whose seeds ran as experiments of their own."""
    if len(experiments) == 1:
        return experiments[0]
    runs = [run for experiment in experiments for run in experiment["seeds"]]
    splits = [split for split in ("dev", "test") if split in runs[0]]
    return {**experiments[0], "seeds": runs, **{s: summarize_seeds([run[s] for run in runs]) for s in splits}}


def unfold_pretraining(row: StudyRow) -> StudyRow:
    """Returns the row with its ``pretrain`` block as a stage, which can run once for each seed."""
    if row.pretrain is None:
        return row
    return replace(row, pretrain=None, stages=(StageOfRow("pretrain", row.pretrain),))


def _prepare_pretrainings(
    study: Study, output: Path, overrides: dict[str, Any], stages: Mapping[str, StageRunner]
) -> dict[str, Callable[[], None]]:
    """Returns, for each row that pre-trains, by name, what does it. Each starts from the row's model."""
    prepared = {}
    for row in study.rows:
        if row.pretrain is None:
            continue
        if "pretrain" not in stages:
            raise KinspanError(f"{study.title}: {row.name}: run_study needs a runner for its pretrain block")
        settings = {"model": _find_start(study, row, overrides), **row.pretrain}
        try:
            prepared[row.name] = stages["pretrain"](settings, output / PRETRAINED / row.folder)
        except KinspanError as error:
            raise KinspanError(f"{study.title}: {row.name}: pretrain: {error}") from error
    return prepared


def _find_start(study: Study, row: StudyRow, overrides: Mapping[str, Any]) -> str | None:
    return {**study.settings, **row.settings, **overrides}.get("model")


def _list_pretraining_hours(study: Study) -> list[float]:
    """Returns the ``max_hours`` of the rows' pre-trainings: within the study's own hours, theirs would not count."""
    blocks = [block for row in study.rows for block in (row.pretrain or {}, *(stage.settings for stage in row.stages))]
    given = [block.get("max_hours") for block in blocks]
    return [convert_setting(FinetuneConfig, "max_hours", hours) for hours in given if hours is not None]


def _be_silent(_: str) -> None:
    pass


def _check_request(study: Study, specs: list[str], overrides: dict[str, Any], transfer: str | None) -> None:
    """Raises KinspanError where the flags do not suit the study."""
    if transfer is None and any(row.tanda for row in study.rows):
        raise KinspanError(f"{study.title}: the rows of TANDA need --transfer, such as asnq=FOLDER")
    if study.repeat_stages and any(row.tanda for row in study.rows):
        raise KinspanError(
            f"{study.title}: --repeat_stages: a row of TANDA transfers once: write its transfer as a stage"
        )
    for spec in specs:
        if [name_set(other) for other in specs].count(name_set(spec)) > 1:
            raise KinspanError(f"--data {spec}: two of {name_set(spec)}=: give each an --output_dir of its own")
    for name in overrides:
        own = [
            row.name
            for row in study.rows
            if name in row.settings or any(s.kind == "finetune" and name in s.settings for s in row.stages)
        ]
        if own:
            rows_named = ", ".join(own[:3]) + (" and more" if len(own) > 3 else "")
            raise KinspanError(f"--set {name}: rows or their stages set it themselves ({rows_named}): change a copy")


def _check_embeds(study: Study, model: str) -> None:
    """Raises KinspanError where the model that the first row starts from has no embeddings to take cosines of."""
    if not is_bi_encoder(model):
        raise KinspanError(
            f"{study.title}: zero_shot needs a model that embeds texts, and {model} is none: name another one in "
            "--model, or remove the line zero_shot"
        )


def _plan_row(
    study: Study,
    row: StudyRow,
    spec: str,
    specs: list[str],
    output: Path,
    overrides: dict[str, Any],
    transfer: str | None,
    runners: Mapping[str, StageRunner],
    where: Mapping[str, str],
    say: Callable[[str], None],
) -> PlannedRow:
    """Returns a row on ``spec`` with its stages. Raises KinspanError, naming study and row."""
    config = _make_row_config(study, row, spec, specs, output, overrides, transfer)
    start = _find_start(study, row, overrides)
    if not row.stages:
        return PlannedRow(row, start, config, [])
    names, common = {**study.where, **where}, {**study.settings, **overrides}
    try:
        filled = [replace(stage, settings=fill_names(stage.settings, names)) for stage in row.stages]
        plan = partial(plan_stages, filled, config.model, spec, common, output, runners, say)
        if not study.repeat_stages:
            return _follow(row, start, config, plan())
        seeds = list_seeds(config)
        chains = [_follow(row, start, replace(config, seed=[seed]), plan(seed)) for seed in seeds]
    except KinspanError as error:
        raise KinspanError(f"{study.title}: {row.name}: {error}") from error
    return PlannedRow(row, start, config, chains[0].stages, tuple(chains))


def _follow(row: StudyRow, start: str | None, config: FinetuneConfig, stages: list[PlannedStage]) -> PlannedRow:
    """A row that trains the model of its last stage."""
    return PlannedRow(row, start, replace(config, model=str(stages[-1].model)), stages)


def _make_row_config(
    study: Study,
    row: StudyRow,
    spec: str,
    specs: list[str],
    output: Path,
    overrides: dict[str, Any],
    transfer: str | None,
) -> FinetuneConfig:
    """Returns all settings of a row on ``spec``, one of ``specs``, which share their transfers.

    Raises KinspanError, naming study and row.
    """
    is_public = name_set(spec) not in ("files", "hub")  # one's own data sets share these names
    if row.tanda and transfer and (transfer == spec or (is_public and name_set(transfer) == name_set(spec))):
        raise KinspanError(f"--transfer {transfer}: it is the target's own data set")
    settings = {**study.settings, **row.settings, **overrides}
    settings |= {"transfer": transfer if row.tanda else None, "transfer_targets": specs}
    settings["transfer_dir"] = str(output / TRANSFERS)
    settings["output_dir"] = str(output / name_set(spec) / row.folder)
    settings["data"] = spec
    if row.pretrain is not None:
        settings["model"] = str(output / PRETRAINED / row.folder / RELEASE)
    try:
        return make_config(settings)
    except KinspanError as error:
        raise KinspanError(f"{study.title}: {row.name}: {error}") from error


def _summarize_set(
    study: Study, spec: str, rows: list[PlannedRow], experiments: list[dict[str, Any]], page: Path, writes_page: bool
) -> dict[str, Any]:
    """Returns the table of one data set, tested against the study's first row; writes its page.

    experiments: what ``run_experiment`` returned for each row
    """
    first = rows[0].config
    data = load_data(next((row.config for row in rows if row.config.transfer), first))
    measured = data.measured[-1]
    shown, metrics = choose_metrics(first), list_metrics(first)
    unseen = find_unseen(measured, _list_seen(rows, data)) if first.loss == CONTRASTIVE else None
    figures = [read_figures(row.config, measured) for row in rows]
    untrained = {}
    if study.bm25:
        untrained[BM25] = compute_question_metrics(measured, score_bm25(measured), metrics)
    if study.zero_shot:
        scores = score_answers(rows[0].start or default_model(), measured)
        untrained[ZERO_SHOT] = compute_question_metrics(measured, scores, metrics)
    runs = [*figures, *([of_name] for of_name in untrained.values())]
    tests = compare_rows([np.stack([seed[shown[0]] for seed in row]) for row in runs])
    papers = [row.row.paper.get(PAPERS_NAME.get(name_set(spec), name_set(spec)), {}) for row in rows]
    lines: list[dict[str, Any]] = [
        {"name": name, **{m: {"mean": v, "sd": None} for m, v in compute_means(of_name).items()}, "p": test}
        for (name, of_name), test in zip(untrained.items(), tests[len(rows) :], strict=True)
    ]
    for row, experiment, test, paper in zip(rows, experiments, tests[: len(rows)], papers, strict=True):
        lines.append(_summarize_row(row, experiment[measured.split], experiment["seeds"], test, paper, rows))
    for line, of_row in zip(lines, [*([of_name] for of_name in untrained.values()), *figures], strict=True):
        if unseen is None:
            continue
        line["interval"] = compute_interval(np.mean([seed[shown[0]] for seed in of_row], axis=0))
        if 0 < unseen.sum() < len(unseen):
            line["unseen"] = summarize_seeds([compute_means(_take(seed, unseen)) for seed in of_row])
    splits = [(data.train, first.train_filter), *((split, first.eval_filter) for split in data.measured)]
    if data.transfer is not None:
        splits.insert(0, (data.transfer, first.train_filter))
    if writes_page:
        entries = [
            Entry(row.row.name, row.config, of_row, paper, row.row.tanda, row.shares_stages)
            for row, of_row, paper in zip(rows, figures, papers, strict=True)
        ]
        notes = [line for line in (study.source, study.about) if line]
        title = f"{study.title}: {name_set(spec)}"
        write_page(page, title, [*notes, *data.notes], splits, entries, untrained)
    return {
        "data": name_set(spec),
        "split": measured.split,
        "questions": measured.num_questions,
        "pairs": measured.num_pairs,
        "report": str(page),
        "metrics": list(shown),
        "bm25": ABOUT if study.bm25 else None,
        "unseen_questions": None if unseen is None else int(unseen.sum()),
        "rows": lines,
    }


def _list_seen(rows: list[PlannedRow], data: Data) -> list[AnswerSet]:
    """What any row or stage of fine-tuning was trained on, and what chose the best rankers."""
    stages = [stage.config for row in rows for stage in row.stages if stage.config]
    trained = {config.train_data or config.data: config for config in [*stages, *(row.config for row in rows)]}
    return [*(load_data(config).train for config in trained.values()), *data.measured[:-1]]


def _take(figures: Figures, questions: np.ndarray) -> Figures:
    return {metric: values[questions] for metric, values in figures.items()}


def _summarize_row(
    row: PlannedRow,
    figures: dict[str, dict[str, float]],
    runs: list[dict[str, Any]],
    test: dict[str, Any] | None,
    paper: dict[str, float],
    rows: list[PlannedRow],
) -> dict[str, Any]:
    """Returns a row's line of the table.

    "clean" names the row with the same settings and no flipped labels; "as_transferred" counts the seeds whose best
    ranker is the transferred one, which no update of the adaptation improved, and "as_started" those of fine-tuning.
    """
    config = row.config
    kept = sum(run["run"]["best_step"] == 0 for run in runs) if config.epochs else 0
    return {
        "name": row.row.name,
        **figures,
        "p": test,
        "paper": paper,
        "seeds": len(list_seeds(config)),
        "label_noise": config.label_noise,
        "clean": _find_clean_row(config, rows),
        "as_transferred": kept if row.row.tanda else 0,
        "as_started": 0 if row.row.tanda else kept,
        "shares_stages": row.shares_stages,
    }


def _find_clean_row(config: FinetuneConfig, rows: list[PlannedRow]) -> str | None:
    """Returns the name of the row that differs only in that it flips no labels."""
    clean = replace(config, label_noise=0.0)
    for other in rows:
        if config.label_noise and replace(other.config, output_dir=config.output_dir) == clean:
            return other.row.name
    return None
