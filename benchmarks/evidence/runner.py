"""Runs the study's jobs one after another, each in a process of its own, until all have run or somebody says stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.stop import STATUS, listen_for_stop

from .plan import (
    FIT,
    RELEASE,
    START,
    Budget,
    Job,
    Places,
    format_budget,
    make_budget,
    name_pretraining,
    name_start,
    plan_jobs,
)
from .recipe import RECIPE, Recipe, read_recipe
from .results import Store, is_described, settle_choices

ROOT = Path(__file__).resolve().parents[2]
LOG = "log.txt"
GRACE_SECONDS = 300  # a process that was asked to stop writes its checkpoint within them
LAST_LINES = 5  # of the log, where a job failed


@dataclass(frozen=True)
class Study:
    """What a command works with. max_hours: of this command; None: until all has run."""

    places: Places
    store: Store
    recipe_file: Path = RECIPE
    max_hours: float | None = None
    budget_hours: float | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the choices that have been made."""
        return settle_choices(read_recipe(self.recipe_file), self.store)

    @property
    def budget(self) -> Budget:
        """What the study costs, and what of it is cut. Raises KinspanError without a measured pilot."""
        if found := self.find_budget():
            return found
        raise KinspanError(f"{self.store.folder}/pilot.json is missing: --pilot measures it, in minutes")

    def find_budget(self) -> Budget | None:
        """The same; None without a pilot."""
        pilot = self.store.read("pilot")
        return pilot and make_budget(self.recipe, self.store, pilot, self.budget_hours)


def run_jobs(study: Study, write_page: Callable[[], None], say: Callable[[str], None] = print) -> bool:
    """Runs what is left within the budget, and returns whether all of it has run.

    The page is written after each group, and where the command ends. Raises KinspanError where a job fails.
    """
    work = Path(study.places.work)
    work.mkdir(parents=True, exist_ok=True)
    with lock_folder(work), listen_for_stop(study.max_hours) as request:
        _describe_sets(study, request.wanted)
        if study.find_budget() is None:
            say("measuring a pilot, from which the hours are computed: minutes")
            _run_process(study, "pilot", {}, request.wanted)
        if request.wanted():
            return False
        say(f"log: {work / LOG}")
        done, total = count_fits(study)
        group = None
        try:
            with tqdm(total=total, initial=done, unit=" fits", disable=None) as bar:
                while (found := find_next(study)) and not request.wanted():
                    number, job = found
                    if group not in (None, job.group):
                        write_page()
                    group = job.group
                    done, total = count_fits(study)
                    say(f"{time.strftime('%H:%M:%S')}  {done} of {total}  {job.group}: {job.name}")
                    if not _run_process(study, "work", {"job": number}, request.wanted):
                        break
                    bar.update()
                    _drop_weights(study)
        finally:
            write_page()
        if request.wanted():
            say("stopped: the same command again goes on")
        return find_next(study) is None


def measure_pilot(study: Study) -> None:
    """Measures what the hours are computed from, and prints them."""
    Path(study.places.work).mkdir(parents=True, exist_ok=True)
    with listen_for_stop(study.max_hours) as request:
        if _run_process(study, "pilot", {}, request.wanted):
            print(format_budget(study.budget))


def find_next(study: Study) -> tuple[int, Job] | None:
    """The first job that has not run and is not cut, with its number in the plan; None where there is none."""
    kept, recipe = study.budget.names, study.recipe
    jobs = plan_jobs(recipe, study.store)
    found = next(((n, job) for n, job in enumerate(jobs) if not job.is_done and job.group in kept), None)
    if found is None or found[1].kind == START:
        return found
    # The weights of a start are no result: where they are absent, they are made again.
    start = found[1].start
    scratch = recipe.content["starts"][start].get("scratch")
    if scratch is None or (name_start(start, scratch, study.places) / RELEASE).is_dir():
        return found
    return next((n, job) for n, job in enumerate(jobs) if (job.kind, job.start) == (START, start))


def count_fits(study: Study) -> tuple[int, int]:
    """How many of the fits within the budget have run, and how many there are."""
    budget = study.budget
    kept = budget.groups[: budget.kept]
    return sum(group[2] for group in kept), sum(group[1] for group in kept)


def _describe_sets(study: Study, wanted: Callable[[], bool]) -> None:
    fingerprint = Corpus(study.places.corpus).manifest.fingerprint
    if not all(is_described(study.store, name, fingerprint) for name in study.places.data):
        _run_process(study, "sets", {}, wanted)


def _run_process(study: Study, module: str, told: dict[str, Any], wanted: Callable[[], bool]) -> bool:
    """Runs a module of this package to its end, and returns whether it came there. Raises KinspanError if it failed.

    Its output goes to the log. Once a stop is wanted, it is asked to end with a checkpoint.
    """
    work, threads = Path(study.places.work), study.recipe.content["threads"]
    told = {**told, "places": asdict(study.places), "results": str(study.store.folder), "threads": threads}
    told["recipe"] = str(study.recipe_file)
    write_atomically(work / "job.json", json.dumps(told, indent=1) + "\n")
    command = [sys.executable, "-m", f"benchmarks.evidence.{module}", str((work / "job.json").absolute())]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what deterministic algorithms need on a GPU
    with (work / LOG).open("ab") as log:
        # A session of its own: a Ctrl-C in the terminal reaches this process alone, which passes it on once.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        with _end_at_exit(process):
            while process.poll() is None and not wanted():
                time.sleep(0.2)
            if process.poll() is None:
                process.terminate()
                process.wait(GRACE_SECONDS)
    if process.returncode in (STATUS, -signal.SIGTERM):
        return False
    if process.returncode:
        lines = (work / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise KinspanError(f"a job failed, see {work / LOG}: {' | '.join(lines)}")
    return True


@contextmanager
def _end_at_exit(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leaves no process behind where this one ends by an error."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _drop_weights(study: Study) -> None:
    """Removes the releases that no row within the budget begins with any more."""
    kept = study.budget.names
    jobs = [job for job in plan_jobs(study.recipe, study.store) if job.kind == FIT and job.pretrain is not None]
    needed = {name_pretraining(job, study.places) for job in jobs if not job.is_done and job.group in kept}
    made = Path(study.places.work) / "pretrained"
    for folder in made.iterdir() if made.is_dir() else ():
        if folder not in needed:
            shutil.rmtree(folder)
