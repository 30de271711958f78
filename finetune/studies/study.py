"""A study runs several experiments on one or more data sets, and shows them in one table beside a paper's figures."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from data_pipeline.core.settings import convert_setting
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
from finetune.training.experiment import read_figures, summarize_seeds
from finetune.training.stages import Data, load_data, name_set
from pretrain.engine.stop import listen_for_stop
from pretrain.engine.world import read_launcher_variables
from pretrain.modeling.default_model import default_model

from .chains import StageRunner
from .jobs import Job, Runs, plan_jobs, run_jobs
from .lines import ResultStore
from .measure import settle_sets
from .rows import TUNE, Study

RESULTS, PAGE, LINES = "study.json", "report.html", "results"
PAPERS_NAME = {"jacana": "trecqa"}  # how papers call a data set that we have in two forms


def run_study(
    study: Study,
    specs: list[str],
    output: Path,
    overrides: dict[str, Any],
    transfer: str | None,
    say: Callable[[str], None] = print,
    stages: Mapping[str, StageRunner] | None = None,
    where: Mapping[str, str] | None = None,
    store: ResultStore | None = None,
    hours: float | None = None,
) -> dict[str, Any]:
    """Runs every row on every data set, and writes a line of results for each seed. Of rows that are listed it also
    writes ``study.json`` and, for each data set, ``report.html``, and returns the tables.

    specs:     data sets such as wikiqa=FOLDER
    overrides: settings that take precedence over the study's. One that a row sets itself is refused, since it is what
               tells the row from the others
    transfer:  what the rows of TANDA transfer from
    stages:    what runs the stages before fine-tuning, by kind: ``pretrain`` for rows that have such a block
    where:     what each ``$name`` in the stages of rows stands for; it takes precedence over the study's
    store:     of the lines; by default a folder of the output
    hours:     stops after them, as at a signal

    The same call again resumes, and several at the same time share the rows. Raises KinspanError for what the user can
    mend, and Stopped where it was asked to stop.
    """
    _check_request(study, specs, overrides, transfer, where or {})
    if study.repeat_stages and study.matrix is None:
        rows = [replace(row, stages=tuple(replace(one, repeats=True) for one in row.stages)) for row in study.rows]
        study = replace(study, rows=rows)
    leads = read_launcher_variables()[0] == 0
    say = say if leads else _be_silent
    store = store or ResultStore(output / LINES)
    runs = Runs(study, specs, output, store, overrides, transfer, stages or {}, where or {}, say)
    jobs = plan_jobs(runs)
    if study.zero_shot:
        _check_embeds(study, jobs[0].start or default_model())
    given = [job.config.max_hours for job in jobs if job.config.max_hours is not None]
    with listen_for_stop(
        min([*given, *_list_stage_hours(study), *([hours] if hours else [])], default=None)
    ) as request:
        if study.matrix is not None:
            _settle_machine(study.matrix["threads"])
            settle_sets(study.matrix, {name_set(spec): spec for spec in specs}, runs.where["corpus"], store)
        results = run_jobs(runs, jobs, request)
    if study.matrix is not None:
        return {}
    tables = [_summarize_jobs(runs, spec, jobs, results, leads) for spec in specs]
    summary = {"title": study.title, "source": study.source, "about": study.about, "tables": tables}
    if leads:
        write_atomically(output / RESULTS, json.dumps(summary, indent=1) + "\n")
    say(format_study(summary))
    return summary


def _settle_machine(threads: int) -> None:
    """As many threads as the study has, so that a row's figures are the same bits again."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what deterministic algorithms need on a GPU
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(torch.cuda.is_available())


def _summarize_jobs(
    runs: Runs, spec: str, jobs: list[Job], results: list[dict[str, Any]], leads: bool
) -> dict[str, Any]:
    """The table of one data set: the seeds of a row that ran as jobs of their own are joined."""
    by_row: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        if job.config.data == spec:
            by_row.setdefault(job.row.name, []).append(number)
    rows = []
    for numbers in by_row.values():
        first, seeds = jobs[numbers[0]], [seed for number in numbers for seed in jobs[number].seeds]
        all_seeds = [] if seeds == list(range(1, first.config.seeds + 1)) else seeds
        rows.append(replace(first, config=replace(first.config, seed=all_seeds)))
    experiments = [join_seeds([results[number] for number in numbers]) for numbers in by_row.values()]
    return _summarize_set(runs.study, spec, rows, experiments, runs.output / name_set(spec) / PAGE, leads)


def join_seeds(experiments: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the results of one row whose seeds ran as experiments of their own."""
    if len(experiments) == 1:
        return experiments[0]
    runs = [run for experiment in experiments for run in experiment["seeds"]]
    splits = [split for split in ("dev", "test") if split in runs[0]]
    return {**experiments[0], "seeds": runs, **{s: summarize_seeds([run[s] for run in runs]) for s in splits}}


def shares_stages(job: Job) -> bool:
    """Whether what comes before a row's own training ran once for several of its seeds."""
    return any(not stage.repeats for stage in job.row.stages) and len(list_seeds(job.config)) > 1


def _list_stage_hours(study: Study) -> list[float]:
    """Returns the ``max_hours`` of the rows' stages: within the study's own hours, theirs would not count."""
    given = [stage.settings.get("max_hours") for row in study.rows for stage in row.stages]
    return [convert_setting(FinetuneConfig, "max_hours", hours) for hours in given if hours is not None]


def _be_silent(_: str) -> None:
    pass


def _check_request(
    study: Study, specs: list[str], overrides: dict[str, Any], transfer: str | None, where: Mapping[str, str]
) -> None:
    """Raises KinspanError where the flags do not suit the study."""
    if transfer is None and any(row.tanda for row in study.rows):
        raise KinspanError(f"{study.title}: the rows of TANDA need --transfer, such as asnq=FOLDER")
    if transfer is not None and not any(row.tanda for row in study.rows):
        raise KinspanError(f"--transfer {transfer}: {study.title} has no row of TANDA: leave it out")
    if study.repeat_stages and any(row.tanda for row in study.rows):
        raise KinspanError(
            f"{study.title}: --repeat_stages: a row of TANDA transfers once: write its transfer as a stage"
        )
    for spec in specs:
        if [name_set(other) for other in specs].count(name_set(spec)) > 1:
            raise KinspanError(f"--data {spec}: two of {name_set(spec)}=: give each an --output_dir of its own")
    if study.matrix is not None:
        _check_matrix(study.matrix, specs, overrides, where)
    for name in overrides:
        own = [
            row.name
            for row in study.rows
            if name in row.settings or any(s.kind == TUNE and name in s.settings for s in row.stages)
        ]
        if own:
            rows_named = ", ".join(own[:3]) + (" and more" if len(own) > 3 else "")
            raise KinspanError(f"--set {name}: rows or their stages set it themselves ({rows_named}): change a copy")


def _check_matrix(
    content: dict[str, Any], specs: list[str], overrides: dict[str, Any], where: Mapping[str, str]
) -> None:
    """Raises KinspanError where the flags do not suit a matrix, or its rows cannot run here."""
    if "ran_at" in content:
        raise KinspanError(f"the rows of this study ran at commit {content['ran_at']}: give --page without --data")
    if overrides:
        raise KinspanError(
            f"--set {next(iter(overrides))}: the study's file has the settings of all rows: change a copy"
        )
    if "corpus" not in where:
        raise KinspanError("--where corpus=FOLDER is needed: the study pre-trains on it")
    if {name_set(spec) for spec in specs} != set(content["sets"]):
        raise KinspanError(f"--data: the study has the sets {', '.join(content['sets'])}: give NAME=FOLDER of each")


def _check_embeds(study: Study, model: str) -> None:
    """Raises KinspanError where the model that the first row starts from has no embeddings to take cosines of."""
    if not is_bi_encoder(model):
        raise KinspanError(
            f"{study.title}: zero_shot needs a model that embeds texts, and {model} is none: name another one in "
            "--model, or remove the line zero_shot"
        )


def _summarize_set(
    study: Study, spec: str, rows: list[Job], experiments: list[dict[str, Any]], page: Path, writes_page: bool
) -> dict[str, Any]:
    """Returns the table of one data set, tested against the study's first row; writes its page.

    experiments: what ``run_experiment`` returned for each row
    """
    first = rows[0].config
    data = load_data(next((row.config for row in rows if row.config.transfer), first))
    measured = data.measured[-1]
    shown, metrics = choose_metrics(first), list_metrics(first)
    unseen = find_unseen(measured, _list_seen(rows, data)) if first.loss == CONTRASTIVE else None
    figures = [read_figures(row.config, measured.split) for row in rows]
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
            Entry(row.row.title, row.config, of_row, paper, row.row.tanda, shares_stages(row))
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


def _list_seen(rows: list[Job], data: Data) -> list[AnswerSet]:
    """What any row or stage of fine-tuning was trained on, and what chose the best rankers."""
    stages = [stage.config for row in rows for stage in row.stages if stage.config]
    trained = {config.train_data or config.data: config for config in [*stages, *(row.config for row in rows)]}
    return [*(load_data(config).train for config in trained.values()), *data.measured[:-1]]


def _take(figures: Figures, questions: np.ndarray) -> Figures:
    return {metric: values[questions] for metric, values in figures.items()}


def _summarize_row(
    row: Job,
    figures: dict[str, dict[str, float]],
    runs: list[dict[str, Any]],
    test: dict[str, Any] | None,
    paper: dict[str, float],
    rows: list[Job],
) -> dict[str, Any]:
    """Returns a row's line of the table.

    "clean" names the row with the same settings and no flipped labels; "as_transferred" counts the seeds whose best
    ranker is the transferred one, which no update of the adaptation improved, and "as_started" those of fine-tuning.
    """
    config = row.config
    kept = sum(run["run"]["best_step"] == 0 for run in runs) if config.epochs else 0
    return {
        "name": row.row.title,
        **figures,
        "p": test,
        "paper": paper,
        "seeds": len(list_seeds(config)),
        "label_noise": config.label_noise,
        "clean": _find_clean_row(config, rows),
        "as_transferred": kept if row.row.tanda else 0,
        "as_started": 0 if row.row.tanda else kept,
        "shares_stages": shares_stages(row),
    }


def _find_clean_row(config: FinetuneConfig, rows: list[Job]) -> str | None:
    """Returns the name of the row that differs only in that it flips no labels."""
    clean = replace(config, label_noise=0.0)
    for other in rows:
        if config.label_noise and replace(other.config, output_dir=config.output_dir) == clean:
            return other.row.title
    return None
