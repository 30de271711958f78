"""Stages of numbered tasks that do not depend on one another: in processes of this machine, on Slurm or on Ray.

A task writes its output under another name and renames it when it is whole, so that a task may be killed at any moment
and done again. Its notes lie in the stage's folder: ``completions/`` (marks of tasks that are done), ``logs/``,
``failures/`` and ``progress/``. Whatever machine a task runs on, these are how the others learn of it.
"""

import contextlib
import io
import json
import logging
import os
import pickle
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.executors import WORKER_DIED, make_pool
from data_pipeline.core.files import describe_write_error
from data_pipeline.core.progress import show_progress

ROOT = Path(__file__).resolve().parents[2]  # what a process elsewhere finds the packages by
NOTES = ("completions", "logs", "failures", "progress")
NOTE_SECONDS = 0.5  # between two notes of how far a task is
NOTE_BYTES = 2000  # that a note of a failure has room for
NO_REASON = {"reason": "it was killed or stopped before it could say why", "known": False, "errno": None}
NEEDED_SBATCH = ("partition", "time")  # that a job of Slurm cannot do without
SBATCH_EXAMPLE = "--sbatch partition=cpu time=08:00:00 account=nlp"
MAX_ARRAY = 1000  # jobs in one of Slurm's arrays, as its own default allows; a job may do several tasks
POLL_SECONDS = 5.0  # between two looks at Slurm's queue
QUEUE_TRIES = 60  # looks in vain after which Slurm is taken to be gone


class Progress:
    """How far one task is, which it notes down now and then for the process that shows a bar."""

    def __init__(self, file: Path) -> None:
        self.file, self.done, self.noted = file, 0, 0.0

    def add(self, number: int) -> None:
        self.done += number
        if time.monotonic() - self.noted >= NOTE_SECONDS:
            self.write()

    def write(self) -> None:
        self.noted = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is the business of what is written beside it
            self.file.write_text(str(self.done))


Work = Callable[[int, Progress], None]


@dataclass(frozen=True)
class Stage:
    """Numbered tasks.

    work:   does the task of a number; it is pickled for every task, so what is large lies in files that it names
    sizes:  of each task, its share of the work in any unit: the largest go first
    names:  what each task works on, as an error names it
    total:  how many documents go through all tasks together, where that is known
    unit:   of the bar: documents, which the work then counts, or tasks
    """

    name: str
    title: str
    work: Work
    sizes: list[int]
    names: list[str]
    folder: Path
    total: int | None = None
    unit: str = "documents"

    def list_incomplete(self) -> list[int]:
        """List the tasks that are not done, the largest first."""
        done = set(os.listdir(self.folder / "completions"))
        left = [task for task in range(len(self.sizes)) if f"{task:05d}" not in done]
        return sorted(left, key=lambda task: (-self.sizes[task], task))


def run_task(work: Work, folder: Path, task: int) -> bool:
    """Do one task unless it is done, and return whether the disk is full.

    An error is noted down: if it came out, it would end the tasks beside this one.
    """
    completion, log, failure, progress = (folder / kind / f"{task:05d}" for kind in NOTES)
    if completion.exists():
        return False
    failure.write_text(" " * NOTE_BYTES)  # it stays if the task is killed, and has room if the disk is full
    note, began, said, full = Progress(progress), time.monotonic(), io.StringIO(f"on {socket.gethostname()}\n"), False
    said.seek(0, io.SEEK_END)
    try:
        with contextlib.redirect_stderr(said):
            work(task, note)
        note.write()
        completion.touch()
        failure.unlink()
        said.write(f"done, {note.done} documents in {time.monotonic() - began:.1f} s\n")
    except Exception as error:
        known, number = isinstance(error, KinspanError), getattr(error, "errno", None)
        full = number in (ENOSPC, EDQUOT)
        reason = str(error) if known else quote_error(error)
        with failure.open("r+") as file:
            file.write(json.dumps({"reason": reason, "known": known, "errno": number}))
        said.write(traceback.format_exc())
    with contextlib.suppress(OSError):
        log.with_suffix(".log").write_text(said.getvalue(), errors="backslashreplace")
    return full


def measure_peak() -> int:
    """Measure the most memory that this program has had so far, in bytes.

    Linux's VmHWM: getrusage also counts what the process that started this one had at that moment.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Engine:
    """Runs stages one after another, in a ``with`` statement, at whose end its processes end."""

    def __init__(self, executor: str, num_workers: int, sbatch: list[str], quiet: bool) -> None:
        if sbatch and executor != "slurm":
            raise KinspanError("--sbatch says what Slurm's jobs ask for: give --executor slurm too, or leave it out")
        self.sbatch = parse_sbatch(sbatch) if executor == "slurm" else {}
        self.num_workers, self.quiet = num_workers, quiet
        self.seconds: dict[str, float] = {}  # that each stage took
        self._run = {"local": self._run_here, "slurm": self._run_on_slurm, "ray": self._run_on_ray}[executor]
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, stage: Stage) -> None:
        """Run the tasks of a stage that are not done. Raises KinspanError where one fails, after all others are done.

        It names the task. Where this machine's disk is full, it does not wait for the others.
        """
        began = time.monotonic()
        for kind in NOTES:
            (stage.folder / kind).mkdir(parents=True, exist_ok=True)
        with watch_stage(stage, self.quiet):
            if left := stage.list_incomplete():
                self._run(stage, left)
        self.seconds[stage.name] = time.monotonic() - began
        if failed := stage.list_incomplete():
            raise KinspanError(explain_failures(stage, sorted(failed)))

    def _run_here(self, stage: Stage, tasks: list[int]) -> None:
        if self.num_workers == 1 or len(stage.sizes) == 1:
            for task in tasks:
                if run_task(stage.work, stage.folder, task):
                    return
            return
        self._pool = self._pool or make_pool(self.num_workers)
        futures = [self._pool.submit(run_task, stage.work, stage.folder, task) for task in tasks]
        try:
            for future in as_completed(futures):
                if not future.cancelled() and future.result():
                    for waiting in futures:
                        waiting.cancel()
        except BrokenProcessPool as error:
            raise KinspanError(WORKER_DIED) from error

    def _run_on_ray(self, stage: Stage, tasks: list[int]) -> None:
        ray = connect_to_ray(self.num_workers)
        run = ray.remote(num_cpus=1, memory=1 << 30)(run_task)
        running: list[Any] = []
        for task in tasks:
            if len(running) == self.num_workers:
                _, running = ray.wait(running)
            running.append(run.remote(stage.work, stage.folder, task))
        ray.wait(running, num_returns=len(running))

    def _run_on_slurm(self, stage: Stage, tasks: list[int]) -> None:
        """Wait for the stage's jobs, which an earlier command may have submitted."""
        job = stage.folder / "job"
        if not (job.exists() and _is_queued(job.read_text())):
            job.write_text(self._submit(stage, tasks))
        while stage.list_incomplete():
            queued = _is_queued(job.read_text())
            time.sleep(POLL_SECONDS)  # after the job's end, too: its last notes may take a moment to be seen here
            if not queued:
                break

    def _submit(self, stage: Stage, tasks: list[int]) -> str:
        count, file = min(len(tasks), MAX_ARRAY), stage.folder / "tasks.pickle"
        file.write_bytes(pickle.dumps((stage.work, stage.folder, tasks)))
        options = {
            "job-name": f"kinspan-{stage.name}",
            "array": f"0-{count - 1}%{self.num_workers}",
            "nodes": "1",
            "cpus-per-task": "1",
            "mem-per-cpu": "2G",
            "output": f"{stage.folder}/logs/job-%A-%a.out",
            **self.sbatch,
        }
        python = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m data_pipeline.prepare.tasks"
        command = ["sbatch", "--parsable", "--requeue", *(f"--{name}={value}" for name, value in options.items())]
        command += ["--wrap", f"{python} {shlex.quote(str(file))} $SLURM_ARRAY_TASK_ID/{count}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise KinspanError(f"--executor slurm: sbatch cannot be called here: {error.strerror}") from error
        if done.returncode:
            raise KinspanError(f"--executor slurm: sbatch does not take the job: {' '.join(done.stderr.split())}")
        return done.stdout.strip().partition(";")[0]


def explain_failures(stage: Stage, failed: list[int]) -> str:
    """Say in one line which tasks failed, and why the first of them did."""
    notes = {task: _read_failure(stage.folder / f"failures/{task:05d}") for task in failed}
    first = next((task for task in failed if notes[task]["known"]), failed[0])
    note = notes[first]
    if note["errno"] in (ENOSPC, EDQUOT):
        return describe_write_error(stage.folder, OSError(note["errno"], os.strerror(note["errno"])))
    others = f" (and {len(failed) - 1} more of {len(stage.sizes)} tasks failed)" if len(failed) > 1 else ""
    if note["known"]:
        return note["reason"] + others
    log = f"logs/{first:05d}.log"
    if not (stage.folder / log).exists():
        log = "logs"
    return (
        f"{stage.title} failed for {stage.names[first]}{others}: {note['reason']}; what the others did is kept, and "
        f"the same command goes on from there; {stage.folder}/{log} has more"
    )


def _read_failure(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return NO_REASON


def parse_sbatch(options: list[str]) -> dict[str, str]:
    """Parse ``partition=cpu time=08:00:00``. Raises KinspanError where one is malformed or a needed one is missing."""
    asked = {}
    for option in options:
        name, _, value = option.partition("=")
        if not (name and value):
            raise KinspanError(f"--sbatch {option}: write NAME=VALUE, such as partition=cpu")
        asked[name] = value
    if missing := [name for name in NEEDED_SBATCH if name not in asked]:
        raise KinspanError(f"--executor slurm: give --sbatch {missing[0]}=..., too; for example {SBATCH_EXAMPLE}")
    return asked


def _is_queued(job: str) -> bool:
    """Whether Slurm still has the job, waiting or running. Raises KinspanError where Slurm does not answer."""
    for _ in range(QUEUE_TRIES):
        try:
            found = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True)
        except OSError as error:
            raise KinspanError(f"--executor slurm: squeue cannot be called here: {error.strerror}") from error
        if not found.returncode or "Invalid job id" in found.stderr:  # so says squeue of a job that ended a while ago
            return bool(found.stdout.strip())
        time.sleep(POLL_SECONDS)
    said = " ".join(found.stderr.split())
    raise KinspanError(f"--executor slurm: squeue does not answer ({said}); the same command again waits for job {job}")


def connect_to_ray(num_workers: int) -> Any:
    """Connect to the Ray cluster that RAY_ADDRESS names, or else start one on this machine; returns the module.

    Raises KinspanError where Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise KinspanError("--executor ray: Ray is not installed; pip install 'kinspan[ray]'") from error
    if not ray.is_initialized():
        here: dict[str, Any] = (
            {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": num_workers, "include_dashboard": False}
        )
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment, **here)
    return ray


@contextlib.contextmanager
def watch_stage(stage: Stage, quiet: bool) -> Iterator[None]:
    """Show a bar of the stage's documents, and how many tasks are done, from the notes in its folder."""
    if quiet:
        yield
        return
    ended, documents, final = threading.Event(), dict[str, int](), set[str]()
    total = len(stage.sizes) if stage.unit == "tasks" else stage.total
    # Past its longest pause tqdm shows the bar by a thread of its own, too.
    settings: dict[str, Any] = {"mininterval": NOTE_SECONDS, "maxinterval": 2 * NOTE_SECONDS}

    def show() -> None:
        completed = os.listdir(stage.folder / "completions")
        if stage.unit == "tasks":
            bar.update(len(completed) - bar.n)
            return
        for name in set(os.listdir(stage.folder / "progress")) - final:
            with contextlib.suppress(OSError, ValueError):  # it is being written
                documents[name] = int((stage.folder / "progress" / name).read_text())
        final.update(completed)  # what these tasks have noted is read once
        if len(stage.sizes) > 1:
            bar.set_postfix_str(f"{len(completed)} of {len(stage.sizes)} tasks", refresh=False)
        bar.update(sum(documents.values()) - bar.n)

    def watch() -> None:
        while not ended.wait(NOTE_SECONDS):
            show()

    with show_progress(stage.title, stage.unit, total=total, **settings) as bar:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            show()


def run_share(file: str, share: str) -> None:
    """Run the tasks K, K + N and so on of those that a stage has left in a file, for a share "K/N"."""
    number, count = map(int, share.split("/"))
    work, folder, tasks = pickle.loads(Path(file).read_bytes())
    for task in tasks[number::count]:
        run_task(work, folder, task)


if __name__ == "__main__":
    run_share(*sys.argv[1:])
