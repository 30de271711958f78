"""Runs the rows of a study: each job is a row with its seeds, or with one of them where its stages repeat.

A job writes a line of results for each seed. Several processes may run the same study: each takes the jobs that no
other one is running. The same study again goes on where it was stopped.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file, make_folder
from data_pipeline.core.settings import settings_of_identity
from finetune.evaluation.metrics import MAP, MRR
from finetune.training.config import FinetuneConfig, list_seeds
from finetune.training.experiment import read_figures, run_experiment
from finetune.training.fingerprints import fingerprint_model
from finetune.training.stages import name_set
from pretrain.engine.lock import lock_folder
from pretrain.engine.stop import Stopped, StopRequest
from pretrain.modeling.default_model import default_model, resolve_model

from .chains import PlannedStage, StageRunner, fill_names, plan_stages
from .lines import DIGITS, ResultStore, shorten
from .matrix import hash_settings, list_rows, settle_precision
from .measure import MAX_LENGTH, describe_machine, draw_for, measure_fused, measure_untuned, summarize_pretraining
from .rows import FINETUNE, PRETRAIN, TRANSFER, Study, StudyRow
from .study_file import make_config

LOCKS, ROWS, SCORES, TRANSFERS = "locks", "rows", "scores", "transfers"  # folders of a study
WAIT_SECONDS = 5.0  # for what another process runs


@dataclass(frozen=True)
class Job:
    """A row of a study on one data set, with all its settings, the stages before it, and the seeds that run together.

    start: the model that all of it begins with, as the settings name it; None: the default model
    parts: of a fused row, the jobs whose scores it takes; the stages are theirs
    """

    row: StudyRow
    start: str | None
    config: FinetuneConfig
    stages: list[PlannedStage]
    parts: tuple["Job", ...] = ()

    @property
    def seeds(self) -> list[int]:
        return list_seeds(self.config)

    @property
    def model(self) -> str:
        """What the row's own fine-tuning starts from, or what is measured."""
        return str(self.stages[-1].model) if self.stages else self.start or default_model()


@dataclass(frozen=True)
class Runs:
    """What the jobs of a study have in common.

    specs:     data sets such as wikiqa=FOLDER
    overrides: settings that take precedence over the study's
    transfer:  what the rows of TANDA transfer from
    runners:   what runs the stages before fine-tuning, by kind
    where:     what each ``$name`` in the stages stands for
    """

    study: Study
    specs: list[str]
    output: Path
    store: ResultStore
    overrides: dict[str, Any]
    transfer: str | None
    runners: Mapping[str, StageRunner]
    where: Mapping[str, str]
    say: Callable[[str], None]


def plan_jobs(runs: Runs) -> list[Job]:
    """All jobs in their order, finished ones too: of a matrix group by group and seed by seed, else row by row.

    Raises KinspanError, naming study and row, for settings that cannot be meant: before the first row runs, so that a
    wrong one costs no hours.
    """
    if runs.study.matrix is None:
        return [job for spec in runs.specs for row in runs.study.rows for job in _plan_row(runs, row, spec)]
    specs, known = {name_set(spec): spec for spec in runs.specs}, {row.name: row for row in runs.study.rows}
    jobs = []
    for group in runs.study.matrix["groups"]:
        rows = [row for row in list_rows(runs.study.matrix, group) if not row.mean_of and group.get("run", True)]
        for seed in dict.fromkeys(seed for row in rows for seed in row.seeds):
            of_seed = [row for row in rows if seed in row.seeds]
            by_pretraining = {hash_settings(row.pretrain): None for row in of_seed}
            for key in by_pretraining:  # rows that begin with the same pre-training follow one another
                together = [
                    replace(known[row.name], seeds=(seed,)) for row in of_seed if hash_settings(row.pretrain) == key
                ]
                jobs += [job for row in together for job in _plan_row(runs, row, specs[row.set])]
    return jobs


def _plan_row(runs: Runs, row: StudyRow, spec: str) -> list[Job]:
    study, stages = runs.study, [stage for stage in row.stages if stage.kind != TRANSFER]
    try:
        config, start = _make_config(runs, row, spec), _find_start(runs, row)
        if row.parts:
            parts = [part for one in row.parts for part in _plan_row(runs, replace(one, seeds=row.seeds), spec)]
            return [Job(row, start, config, [stage for part in parts for stage in part.stages], tuple(parts))]
        if not stages:
            return [Job(_bind(row, config, spec, start, study), start, config, [])]
        names, common = {**study.where, **runs.where}, {**study.settings, **runs.overrides}
        filled = [replace(stage, settings=fill_names(stage.settings, names)) for stage in stages]
        plan = partial(plan_stages, filled, config.model, spec, common, runs.output, runs.runners, runs.say)
        bound = _bind(row, config, spec, start, study)
        if not any(stage.repeats for stage in filled):
            return [_follow(Job(bound, start, config, plan()))]
        return [_follow(Job(bound, start, replace(config, seed=[seed]), plan(seed))) for seed in list_seeds(config)]
    except KinspanError as error:
        raise KinspanError(f"{study.title}: {row.name}: {error}") from error


def _bind(row: StudyRow, config: FinetuneConfig, spec: str, start: str | None, study: Study) -> StudyRow:
    """A listed row on a data set, by the name that its lines have; rows of a matrix have all that already."""
    if study.matrix is not None:
        return row
    stages = [[stage.kind, stage.settings, stage.repeats] for stage in row.stages]
    made_of = [start, stages, name_set(spec), settings_of_identity(config), config.max_length]
    seeds = tuple(list_seeds(config))
    return replace(
        row,
        name=f"{row.name}/{name_set(spec)}",
        title=row.name,
        set=name_set(spec),
        seeds=seeds,
        compared=seeds,
        fingerprint=hash_settings(made_of),
    )


def _follow(job: Job) -> Job:
    return replace(job, config=replace(job.config, model=job.model))


def _find_start(runs: Runs, row: StudyRow) -> str | None:
    if runs.study.matrix is not None:
        model = fill_names(runs.study.matrix["starts"][row.start].get("model"), runs.where)
    else:
        model = {**runs.study.settings, **row.settings, **runs.overrides}.get("model")
    return resolve_model(model) if model else None


def _make_config(runs: Runs, row: StudyRow, spec: str) -> FinetuneConfig:
    """All settings of a row on ``spec``, one of the study's data sets, which share their transfers."""
    if runs.study.matrix is not None:
        settings = settle_precision(row.settings) if row.measure == FINETUNE else {}
        seeds = "-".join(map(str, row.seeds))  # another process may be at another seed, and each removes its folder
        folder = runs.output / ROWS / f"{shorten(row.name)}-{row.fingerprint}-{seeds}"
        given = {**settings, "model": _find_start(runs, row), "data": spec, "max_length": MAX_LENGTH}
        return make_config({**given, "seed": list(row.seeds), "output_dir": str(folder)})
    is_public = name_set(spec) not in ("files", "hub")  # one's own data sets share these names
    transfer = runs.transfer if row.tanda else None
    if transfer and (transfer == spec or (is_public and name_set(transfer) == name_set(spec))):
        raise KinspanError(f"--transfer {transfer}: it is the target's own data set")
    settings = {**runs.study.settings, **row.settings, **runs.overrides}
    settings |= {"transfer": transfer, "transfer_targets": runs.specs, "transfer_dir": str(runs.output / TRANSFERS)}
    settings |= {"output_dir": str(runs.output / name_set(spec) / row.folder), "data": spec}
    return make_config(settings)


def run_jobs(runs: Runs, jobs: Sequence[Job], request: StopRequest) -> list[dict[str, Any]]:
    """Runs what is left, and returns the results of each job, empty where its lines were there.

    Raises Stopped, with a checkpoint, where it was asked to stop, and KinspanError where a row fails, or the output
    cannot be written.
    """
    make_folder(locks := runs.output / LOCKS)
    if not os.access(locks, os.W_OK):  # else every job would pass for another process's, and this one wait for ever
        raise KinspanError(f"--output_dir {locks} cannot be written")
    results: dict[int, dict[str, Any]] = {}
    made: set[Path] = set()
    while len(results) < len(jobs):
        before = len(results)
        for number, job in enumerate(jobs):
            if number in results:
                continue
            if request.wanted():
                raise Stopped
            found = _run_unless_taken(runs, job, made)
            if found is not None:
                results[number] = found
                _drop_weights(runs, job, jobs)
        if len(results) == before:
            time.sleep(WAIT_SECONDS)
    return [results[number] for number in range(len(jobs))]


def _run_unless_taken(runs: Runs, job: Job, made: set[Path]) -> dict[str, Any] | None:
    """Runs a job and writes its lines; None where another process is at it or at one of its stages."""
    is_matrix = runs.study.matrix is not None
    if is_matrix and not runs.store.find_missing(job.row, job.seeds):
        return {}
    with ExitStack() as stack:
        if not _take(stack, runs, f"{job.row.name}-{'-'.join(map(str, job.seeds))}"):
            return None
        if is_matrix and not runs.store.find_missing(job.row, job.seeds):
            return {}
        for stage in job.stages:
            if stage.model not in made:  # rows share what they have in common
                with ExitStack() as of_stage:
                    if not _take(of_stage, runs, str(stage.model.relative_to(runs.output))):
                        return None
                    runs.say(f"\n== {job.row.name}: {stage.title}: {stage.model}")
                    stage.run()
                    made.add(stage.model)
        runs.say(f"\n== {job.row.name}, seed {', '.join(map(str, job.seeds))}: {job.config.output_dir}")
        return _measure(runs, job)


def _take(stack: ExitStack, runs: Runs, name: str) -> bool:
    """Whether no other process holds this name; it is held until the stack ends."""
    try:
        stack.enter_context(lock_folder(runs.output / LOCKS / shorten(name)))
    except KinspanError:
        return False
    return True


def _measure(runs: Runs, job: Job) -> dict[str, Any]:
    """Fine-tunes if the row does, measures, writes a line for each seed, and returns what the experiment did."""
    row, spec, began = job.row, job.config.data, time.monotonic()
    fixed = [stage.model for stage in job.stages if not stage.repeats]
    start = str(fixed[-1] if fixed else job.start or default_model())
    results: dict[str, Any] = {}
    if job.parts:
        for part in job.parts:
            if not _name_scores(runs, part).is_dir():  # its line alone may be there
                _measure(runs, part)
        kept = {part.row.arm: _name_scores(runs, part) for part in job.parts}
        lines = [{"seed": seed, **measure_fused(row, seed, start, spec, kept)} for seed in job.seeds]
    elif row.measure != FINETUNE:
        lines = [{"seed": seed, **measure_untuned(row, seed, job.model, spec)} for seed in job.seeds]
    else:
        results = run_experiment(job.config, runs.say, draw_for(row), runs.study.matrix is None, baselines=False)
        lines = _list_lines(job, results)
    pretrained = [stage.model.parent for stage in job.stages if stage.kind == PRETRAIN and stage.repeats]
    known = (runs.study.matrix or {}).get("fingerprints", {})
    about = {
        "start": fingerprint_model(start),
        "pretrain": summarize_pretraining(pretrained[-1]) if pretrained and runs.study.matrix else None,
        **({"corpus": known["corpus"], "data": known[row.set]} if known else {}),
        "seconds": round((time.monotonic() - began) / len(lines), 1),
        "machine": describe_machine(),
    }
    for line in lines:
        runs.store.add(row, {**line, **about})
    if runs.study.matrix is not None:
        if _is_part(runs.study, row):
            _keep_scores(job, _name_scores(runs, job))
        shutil.rmtree(job.config.output_dir, ignore_errors=True)
    return results


def _is_part(study: Study, row: StudyRow) -> bool:
    return any(part.fingerprint == row.fingerprint for fused in study.rows for part in fused.parts)


def _name_scores(runs: Runs, job: Job) -> Path:
    """The folder of the runs on dev and test that a fusion of this row needs."""
    return runs.output / SCORES / f"{job.row.fingerprint}-{job.seeds[0]}"


def _keep_scores(job: Job, folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for split in ("dev", "test"):
        shutil.copytree(Path(job.config.output_dir) / f"seed-{job.seeds[0]}" / split, partial / split)
    shutil.rmtree(folder, ignore_errors=True)  # of a run whose line is gone
    partial.replace(folder)


def _list_lines(job: Job, results: dict[str, Any]) -> list[dict[str, Any]]:
    """What the lines hold of fine-tuned seeds."""
    split = "test" if "test" in results else "dev"
    figures = read_figures(job.config, split)
    lines = []
    for run, of_seed in zip(results["seeds"], figures, strict=True):
        ranks = np.where(of_seed[MRR] > 0, np.rint(1 / np.maximum(of_seed[MRR], 1e-9)), 0).astype(int)
        run_file = Path(job.config.output_dir) / f"seed-{run['seed']}" / split / "run.txt"
        tuned = {name: run["run"].get(name) for name in ("steps", "best_step", "stopped", "precision", "wall_seconds")}
        line = {"seed": run["seed"], "ap": np.round(of_seed[MAP], DIGITS).tolist(), "rank": ranks.tolist()}
        lines.append({**line, "scores": hash_file(run_file)[:16], "dev_map": run["dev"][MAP], "finetune": tuned})
    return lines


def _drop_weights(runs: Runs, job: Job, jobs: Sequence[Job]) -> None:
    """Removes, of a matrix, the pre-trainings of one seed that no job which is left begins with."""
    if runs.study.matrix is None:
        return
    for stage in job.stages:
        sharing = [other for other in jobs if any(one.model == stage.model for one in other.stages)]
        if stage.repeats and not any(runs.store.find_missing(other.row, other.seeds) for other in sharing):
            shutil.rmtree(stage.model.parent, ignore_errors=True)
