"""Runs the study's jobs, as many at a time as there are workers, each in a process of its own, until all have run or
somebody says stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
    find_ready,
    format_budget,
    make_budget,
    name_pretraining,
    name_start,
    plan_jobs,
)
from .recipe import RECIPE, Recipe, read_recipe
from .results import Store, is_described, settle_choices

Process = subprocess.Popen[bytes]
ROOT = Path(__file__).resolve().parents[2]
LOG = "log.txt"
GRACE_SECONDS = 300  # a process that was asked to stop writes its checkpoint within them
POLL_SECONDS = 0.2
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
        running: dict[int, Process] = {}
        try:
            with tqdm(total=total, initial=done, unit=" fits", disable=None) as bar:
                _fill(study, running, say)
                while running and not request.wanted():
                    ended = [number for number, process in running.items() if process.poll() is not None]
                    for number in ended:
                        if _has_ended_well(study, running.pop(number)):
                            bar.update()
                            _drop_weights(study)
                            if _is_group_done(study, number):
                                write_page()
                    if ended:
                        _fill(study, running, say)
                    time.sleep(POLL_SECONDS)
            _stop(study, running)
        finally:
            _kill(running)
            write_page()
        if request.wanted():
            say("stopped: the same command again goes on")
        return all(job.is_done for job in _list_jobs(study))


def _fill(study: Study, running: dict[int, Process], say: Callable[[str], None]) -> None:
    """Begins jobs until every worker has one, or none is ready."""
    while len(running) < study.recipe.content["workers"]:
        jobs = _list_jobs(study)
        number = find_ready(jobs, set(running))
        if number is None:
            break
        done, total = count_fits(study)
        say(f"{time.strftime('%H:%M:%S')}  {done} of {total}  {jobs[number].group}: {jobs[number].name}")
        running[number] = _begin_process(study, "work", {"job": number}, f"job-{number}")


def measure_pilot(study: Study) -> None:
    """Measures what the hours are computed from, and prints them."""
    Path(study.places.work).mkdir(parents=True, exist_ok=True)
    with listen_for_stop(study.max_hours) as request:
        if _run_process(study, "pilot", {}, request.wanted):
            print(format_budget(study.budget))


def _list_jobs(study: Study) -> list[Job]:
    """The jobs of the study in order; those whose group is cut are as good as done.

    The weights of a start are no result: where they are absent and a row needs them, they are made again.
    """
    kept, recipe = study.budget.names, study.recipe
    jobs = [job if job.group in kept else replace(job, is_done=True) for job in plan_jobs(recipe, study.store)]
    needed = {job.start for job in jobs if not job.is_done}
    for number, job in enumerate(jobs):
        if job.kind == START and job.start in needed:
            scratch = recipe.content["starts"][job.start]["scratch"]
            is_there = (name_start(job.start, scratch, study.places) / RELEASE).is_dir()
            jobs[number] = replace(job, is_done=job.is_done and is_there)
    return jobs


def _is_group_done(study: Study, number: int) -> bool:
    jobs = _list_jobs(study)
    return all(job.is_done for job in jobs if job.group == jobs[number].group)


def count_fits(study: Study) -> tuple[int, int]:
    """How many of the fits within the budget have run, and how many there are."""
    budget = study.budget
    kept = budget.groups[: budget.kept]
    return sum(group[2] for group in kept), sum(group[1] for group in kept)


def _describe_sets(study: Study, wanted: Callable[[], bool]) -> None:
    fingerprint = Corpus(study.places.corpus).manifest.fingerprint
    expected = study.recipe.content.get("fingerprints", {}).get("corpus", fingerprint)
    if expected != fingerprint:
        raise KinspanError(
            f"{study.recipe_file.name} is of a corpus with the fingerprint {expected}, and {study.places.corpus} has "
            f"{fingerprint}: prepare the texts again as the recipe says"
        )
    other = [name for name in study.places.data if is_described(study.store, name, fingerprint) is False]
    if other and any(study.store.folder.glob("*.jsonl")):
        raise KinspanError(
            f"{study.store.folder} holds results of another corpus than {study.places.corpus}: name another --results"
        )
    if not all(is_described(study.store, name, fingerprint) for name in study.places.data):
        _run_process(study, "sets", {}, wanted)


def _run_process(study: Study, module: str, told: dict[str, Any], wanted: Callable[[], bool]) -> bool:
    """Runs a module of this package to its end, and returns whether it came there. Raises KinspanError if it failed."""
    running = {0: _begin_process(study, module, told, module)}
    try:
        while running[0].poll() is None and not wanted():
            time.sleep(POLL_SECONDS)
        if running[0].poll() is not None:
            return _has_ended_well(study, running.pop(0))
        _stop(study, running)
        return False
    finally:
        _kill(running)


def _begin_process(study: Study, module: str, told: dict[str, Any], name: str) -> Process:
    """Begins a module of this package, which reads what it is told in NAME.json. Its output goes to the log."""
    work, threads = Path(study.places.work), study.recipe.content["threads"]
    told = {**told, "places": asdict(study.places), "results": str(study.store.folder), "threads": threads}
    told["recipe"] = str(study.recipe_file)
    file = work / f"{name}.json"
    write_atomically(file, json.dumps(told, indent=1) + "\n")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what deterministic algorithms need on a GPU
    with (work / LOG).open("ab") as log:
        # A session of its own: a Ctrl-C in the terminal reaches this process alone, which passes it on once.
        return subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.evidence.{module}", str(file.absolute())],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _has_ended_well(study: Study, process: Process) -> bool:
    """Whether a process that has ended came to its end, and was not stopped. Raises KinspanError if it failed."""
    if process.returncode in (STATUS, -signal.SIGTERM):
        return False
    if process.returncode:
        log = Path(study.places.work) / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise KinspanError(f"a job failed, see {log}: {' | '.join(lines)}")
    return True


def _stop(study: Study, running: dict[int, Process]) -> None:
    """Asks processes to end with a checkpoint, and waits until they have."""
    for process in running.values():
        process.terminate()
    while running:
        _, process = running.popitem()
        process.wait(GRACE_SECONDS)
        _has_ended_well(study, process)


def _kill(running: dict[int, Process]) -> None:
    """Leaves no process behind where this one ends by an error."""
    for process in running.values():
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
