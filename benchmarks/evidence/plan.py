"""What is left to do, in order, what it costs by a measured pilot, and what is cut when the budget is short."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .recipe import FINETUNE, Recipe, Row, hash_settings
from .results import Store

START, FIT, RERUN = "start", "fit", "rerun"
RELEASE = "release"  # in the folder of a start or a pre-training
ELECTRA = "electra"
SHORT_SECONDS = 8.0  # of ranking a test set zero-shot


@dataclass(frozen=True)
class Job:
    """What one process does: it makes a start, or pre-trains once and measures the rows that begin there.

    kind:     START, FIT or RERUN
    rows:     those that it measures
    left:     those of them that this seed has not run yet
    is_done:  nothing of it is left
    """

    kind: str
    group: str
    start: str
    seed: int
    pretrain: dict[str, Any] | None = None
    rows: tuple[Row, ...] = ()
    left: tuple[Row, ...] = ()
    is_done: bool = False

    @property
    def pretraining(self) -> tuple[str, str, int]:
        """Names the pre-training that the job begins with."""
        return self.start, hash_settings(self.pretrain), self.seed

    @property
    def name(self) -> str:
        """For the screen."""
        what = ", ".join(row.name for row in self.rows) or f"start ({self.start})"
        again = "once more, from scratch: " if self.kind == RERUN else ""
        return f"{again}{what}, seed {self.seed}"


@dataclass(frozen=True)
class Places:
    """Folders: of work, of the corpus, and of the data sets by name, as ``NAME=FOLDER``."""

    work: str
    corpus: str
    data: dict[str, str]


def plan_jobs(recipe: Recipe, store: Store) -> list[Job]:
    """All jobs of the study in order, finished ones too.

    Before the first group of a start come its making and the rows of its choices. A choice whose settings wait for
    another one is planned all the same, so that it is counted.
    """
    jobs: list[Job] = []
    begun: set[str] = set()
    for group, rows in recipe.list_group_rows():
        start = rows[0].start
        if start not in begun:
            begun.add(start)
            jobs += _plan_start(recipe, store, start)
        jobs += _plan_rows(store, group, rows)
        if recipe.content.get("rerun", {}).get("after") == group:
            jobs += _plan_rerun(recipe, store, group)
    return jobs


def find_ready(jobs: list[Job], running: set[int]) -> int | None:
    """The number of the first job that can begin: what it needs is there, and no job that runs makes the same weights.

    jobs: in order of need; a job of these that is done is one that nothing waits for
    running: numbers of those that run
    """
    for number, job in enumerate(jobs):
        if job.is_done or number in running:
            continue
        waits = any(not other.is_done and other.kind == START and other.start == job.start for other in jobs[:number])
        if job.kind == RERUN:
            waits |= any(not other.is_done and other.kind == FIT and job.rows[0] in other.rows for other in jobs)
        waits |= any(row.fingerprint is None for row in job.rows)  # until what its settings take is chosen
        shares = job.pretrain is not None and any(jobs[other].pretraining == job.pretraining for other in running)
        if not waits and not shares:
            return number
    return None


def _plan_start(recipe: Recipe, store: Store, start: str) -> list[Job]:
    jobs = []
    if scratch := recipe.content["starts"][start].get("scratch"):
        made = store.read(f"start-{start}")
        is_made = made is not None and made["fingerprint"] == hash_settings(scratch)
        jobs.append(Job(START, f"start ({start})", start, scratch["pretrain"]["seed"], is_done=is_made))
    for choice in recipe.choices:
        if choice.start == start:
            for rows in choice.rows:
                jobs += _plan_rows(store, f"choices of start ({start})", list(rows))
    return jobs


def _plan_rows(store: Store, group: str, rows: list[Row]) -> list[Job]:
    """Seed by seed; rows that begin with the same pre-training share a job."""
    jobs = []
    for seed in dict.fromkeys(seed for row in rows for seed in row.seeds):
        by_pretraining: dict[str, list[Row]] = {}
        for row in rows:
            by_pretraining.setdefault(hash_settings(row.pretrain), []).append(row)
        for together in by_pretraining.values():
            left = tuple(row for row in together if store.find_missing(row, (seed,)))
            first = together[0]
            jobs.append(Job(FIT, group, first.start, seed, first.pretrain, tuple(together), left, not left))
    return jobs


def _plan_rerun(recipe: Recipe, store: Store, group: str) -> list[Job]:
    told = recipe.content["rerun"]
    row = next(row for row in recipe.rows if row.name == told["row"])
    found = store.read("rerun")
    is_done = found is not None and (found["fingerprint"], found["seed"]) == (row.fingerprint, told["seed"])
    return [Job(RERUN, group, row.start, told["seed"], row.pretrain, (row,), (row,), is_done)]


def estimate_seconds(
    job: Job, recipe: Recipe, pilot: dict[str, Any], store: Store, known: set[tuple[str, str, int]]
) -> float:
    """How long the job takes, or took.

    pilot: as work.py measures it
    known: names of the pre-trainings that are counted already; that of the job is added
    """
    if job.kind == START:
        made = store.read(f"start-{job.start}")
        tokens = recipe.content["starts"][job.start]["scratch"]["pretrain"]["max_tokens"]
        return made["seconds"] if made and job.is_done else tokens / pilot[job.start]["tokens_per_second"]
    seconds = pilot["startup_seconds"]
    if job.pretrain is not None and (job.pretraining not in known or job.kind == RERUN):
        seconds += _estimate_pretraining(job, pilot, store)
    known.add(job.pretraining)
    return seconds + sum(_estimate_row(row, recipe, pilot, store) for row in job.rows)


def _estimate_pretraining(job: Job, pilot: dict[str, Any], store: Store) -> float:
    settings = job.pretrain or {}
    if measured := _find_least([line["pretrain"]["seconds"] for line in _list_lines(store, job.rows, pilot)]):
        return measured
    model = ELECTRA if settings.get("token_loss") == "rtd" else job.start
    tokens = settings.get("max_tokens") or (
        settings["max_steps"] * settings["global_batch_size"] * pilot["tokens_of_pair"][str(settings["max_length"])]
    )
    return tokens / pilot[model]["tokens_per_second"]


def _estimate_row(row: Row, recipe: Recipe, pilot: dict[str, Any], store: Store) -> float:
    if measured := _find_least([line["seconds"] for line in _list_lines(store, (row,), pilot)]):
        return measured
    if row.measure != FINETUNE:
        return SHORT_SECONDS
    settings, of_set = row.finetune, pilot["sets"][row.set]
    share = row.share
    if row.questions is not None:
        share = min(1.0, row.questions / of_set["train_questions"])
    positives = of_set["train_positives"] * share
    epoch = math.ceil(positives * (1 + settings["negatives_ratio"]) / settings["batch_size"])
    updates = min(settings["epochs"] * epoch, settings.get("max_steps") or math.inf)
    validations = 1 + updates / (settings.get("eval_steps") or epoch)
    times = pilot[row.start]["sets"][row.set]
    # Early stopping ends a run before that; how much before is known only once rows have run.
    return updates * times["seconds_of_update"] + validations * times["seconds_of_validation"] + times["seconds_around"]


def _list_lines(store: Store, rows: tuple[Row, ...], pilot: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that ran on the pilot's machine: what is cut does not depend on a slower one that took rows over."""
    lines = [line for row in rows for line in store.read_lines(row).values()]
    return [line for line in lines if line["machine"] == pilot["machine"]]


def _find_least(values: list[float]) -> float | None:
    """The least of measured seconds: other work on the machine makes a run longer, and never shorter."""
    return min(values, default=None)


@dataclass(frozen=True)
class Budget:
    """The study's hours, group by group.

    groups: of each the name, the number of fits, of those that have run, and the hours of all, on all workers
    kept:   how many groups fit into the budget, from the first on
    """

    groups: list[tuple[str, int, int, float]]
    kept: int
    hours: float

    @property
    def names(self) -> set[str]:
        """The groups that fit."""
        return {name for name, *_ in self.groups[: self.kept]}


def make_budget(recipe: Recipe, store: Store, pilot: dict[str, Any], hours: float | None = None) -> Budget:
    """Adds up the jobs, and cuts groups from the end until the rest fits into the recipe's hours, or into ``hours``."""
    known: set[tuple[str, str, int]] = set()
    groups: dict[str, list[float]] = {}
    for job in plan_jobs(recipe, store):
        entry = groups.setdefault(job.group, [0, 0, 0.0])
        entry[0] += 1
        entry[1] += job.is_done
        entry[2] += estimate_seconds(job, recipe, pilot, store, known) / 3600 / recipe.content["workers"]
    listed = [(name, int(fits), int(done), cost) for name, (fits, done, cost) in groups.items()]
    allowed, kept = recipe.content["budget_hours"] if hours is None else hours, len(listed)
    while kept > 1 and sum(cost for *_, cost in listed[:kept]) > allowed:
        kept -= 1
    return Budget(listed, kept, allowed)


def format_budget(budget: Budget) -> str:
    """The table that ``--dry_run`` prints."""
    lines = [f"{'group':<28}{'fits':>6}{'have run':>10}{'hours':>8}{'in all':>8}"]
    total = 0.0
    for number, (name, fits, done, cost) in enumerate(budget.groups):
        total += cost
        cut = "" if number < budget.kept else "   cut: over the budget"
        lines.append(f"{name:<28}{fits:>6}{done:>10}{cost:>8.2f}{total:>8.2f}{cut}")
    kept = budget.groups[: budget.kept]
    fits, hours = sum(row[1] for row in kept), sum(row[3] for row in kept)
    told = f"{fits} fits in {hours:.1f} hours on the pilot's machine, of {budget.hours:g}"
    lines.append(f"{told}; the rows that are cut are cut from the end")
    return "\n".join(lines)


def name_start(start: str, scratch: dict[str, Any], places: Places) -> Path:
    """The folder of a start that is made here."""
    return Path(places.work) / "starts" / f"{start}-{hash_settings(scratch)}"


def name_pretraining(job: Job, places: Places) -> Path:
    """The folder of the job's pre-training."""
    return Path(places.work) / "pretrained" / f"{job.start}-{hash_settings(job.pretrain)}-{job.seed}"
