"""Runs stages of independent, numbered tasks: in processes of this machine, on Slurm or on Ray.

A task renames its output into place when it is complete, so it may be killed at any moment and run again. It writes
``00001.done`` or ``00001.failed`` to the stage's folder, where other machines see it. datatrove's executors are not
used: the local one waits for ever for a killed worker and drops the tasks that run beside a failed one; the Slurm one
does not wait for its jobs, whose results the next stage needs.
"""

import json
import logging
import os
import pickle
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Self

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.executors import WORKER_DIED, make_pool
from data_pipeline.core.files import PROJECT_ROOT
from data_pipeline.core.progress import show_progress

MAX_ARRAY = 1000  # jobs of a Slurm array, as its default allows; a job may run several tasks
POLL_SECONDS = 5.0  # between two calls of squeue
QUEUE_TRIES = 60  # failed calls after which Slurm is considered gone

Work = Callable[[int], None]


@dataclass(frozen=True)
class Stage:
    """Numbered tasks, run by descending size. ``work`` is pickled for each, so it refers to large data by file name."""

    title: str
    work: Work
    folder: Path
    names: list[str]
    sizes: list[int] | None = None

    def list_incomplete(self) -> list[int]:
        """Lists the numbers of the tasks that are not done, the largest first."""
        done = set(os.listdir(self.folder))
        incomplete = [task for task in range(len(self.names)) if f"{task:05d}.done" not in done]
        sizes = self.sizes or [0] * len(self.names)
        return sorted(incomplete, key=lambda task: -sizes[task])


def run_task(work: Work, folder: Path, task: int) -> None:
    """Runs a task unless it is done. An error is written to a file, so that the other tasks go on.

    Raises OSError if the disk is full, since the other tasks would fail too, and no error can be written.
    """
    done, failed = folder / f"{task:05d}.done", folder / f"{task:05d}.failed"
    if done.exists():
        return
    failed.unlink(missing_ok=True)
    try:
        work(task)
        done.touch()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            raise
        is_expected = isinstance(error, KinspanError)
        reason = str(error) if is_expected else quote_error(error)
        failed.write_text(json.dumps({"reason": reason, "known": is_expected, "traceback": traceback.format_exc()}))


class Engine:
    """Runs stages one after another. As a context manager, it ends its worker processes on exit."""

    def __init__(self, executor: str, num_workers: int, sbatch: list[str], quiet: bool) -> None:
        if sbatch and executor != "slurm":
            raise KinspanError("--sbatch: only for --executor slurm")
        self.sbatch = dict(option.partition("=")[::2] for option in sbatch)
        is_complete = {"partition", "time"} <= self.sbatch.keys() and all(map(all, self.sbatch.items()))
        if executor == "slurm" and not is_complete:
            raise KinspanError(f"--sbatch {' '.join(sbatch)}: give NAME=VALUE, among them partition=... and time=...")
        self.num_workers, self.quiet = num_workers, quiet
        self._run = {"local": self._run_locally, "slurm": self._run_on_slurm, "ray": self._run_on_ray}[executor]
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, stage: Stage) -> None:
        """Runs the tasks that are not done. Raises KinspanError if one failed, after all others have ended."""
        stage.folder.mkdir(parents=True, exist_ok=True)
        tasks = stage.list_incomplete()
        ends = self._run(stage, tasks) if tasks else iter(())
        for _ in show_progress(stage.title, "tasks", ends, len(tasks), self.quiet):
            pass
        if failed := sorted(stage.list_incomplete()):
            failures = {task: read_failure(stage, task) for task in failed}
            task = next((task for task in failed if failures[task]["known"]), failed[0])
            if failures[task]["known"]:
                raise KinspanError(str(failures[task]["reason"]))
            file = stage.folder / f"{task:05d}.failed"
            raise KinspanError(f"{stage.title}: {stage.names[task]}: {failures[task]['reason']}; see {file}")

    def _run_locally(self, stage: Stage, tasks: list[int]) -> Iterator[None]:
        """Yields once for each task that ends, as do the other two executors."""
        if self.num_workers == 1 or len(stage.names) == 1:
            for task in tasks:
                run_task(stage.work, stage.folder, task)
                yield
            return
        self._pool = self._pool or make_pool(self.num_workers)
        try:
            futures = [self._pool.submit(run_task, stage.work, stage.folder, task) for task in tasks]
            yield from (future.result() for future in as_completed(futures))
        except BrokenProcessPool as error:
            raise KinspanError(WORKER_DIED) from error

    def _run_on_ray(self, stage: Stage, tasks: list[int]) -> Iterator[None]:
        """Runs on the cluster at RAY_ADDRESS, or on one that is started on this machine if it is not set."""
        try:
            import ray
        except ImportError as error:
            raise KinspanError("--executor ray: Ray is not installed; pip install 'kinspan[ray]'") from error
        if not ray.is_initialized():
            local = {"num_cpus": self.num_workers, "include_dashboard": False}
            settings = {} if os.environ.get("RAY_ADDRESS") else local
            environment = {"env_vars": {"PYTHONPATH": str(PROJECT_ROOT), "TOKENIZERS_PARALLELISM": "false"}}
            ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment, **settings)
        run = ray.remote(num_cpus=1, memory=1 << 30)(run_task)
        running: list = []
        for task in tasks:
            if len(running) == self.num_workers:
                _, running = ray.wait(running)
                yield
            running.append(run.remote(stage.work, stage.folder, task))
        while running:
            _, running = ray.wait(running)
            yield

    def _run_on_slurm(self, stage: Stage, tasks: list[int]) -> Iterator[None]:
        """Submits the stage's jobs, unless an earlier command did, and waits for them."""
        job, num_left = stage.folder / "job", len(tasks)
        if not (job.exists() and is_queued(job.read_text())):
            job.write_text(self._submit(stage, tasks))
        may_run = True
        while num_left and may_run:
            may_run = is_queued(job.read_text())
            time.sleep(POLL_SECONDS)  # also after the job's end, since its last files may appear here a moment later
            num_before, num_left = num_left, len(stage.list_incomplete())
            yield from [None] * (num_before - num_left)

    def _submit(self, stage: Stage, tasks: list[int]) -> str:
        count, file = min(len(tasks), MAX_ARRAY), stage.folder / "tasks.pickle"
        file.write_bytes(pickle.dumps((stage.work, stage.folder, tasks)))
        options = {
            "job-name": f"kinspan-{stage.folder.name}",
            "array": f"0-{count - 1}%{self.num_workers}",
            "nodes": "1",
            "cpus-per-task": "1",
            "mem-per-cpu": "2G",
            "output": f"{stage.folder}/job-%A-%a.out",
            **self.sbatch,
        }
        program = shlex.join([sys.executable, "-m", "data_pipeline.prepare.tasks", str(file)])
        command = ["sbatch", "--parsable", "--requeue", *(f"--{name}={value}" for name, value in options.items())]
        environment = f"TOKENIZERS_PARALLELISM=false PYTHONPATH={shlex.quote(str(PROJECT_ROOT))}"
        command += ["--wrap", f"{environment} {program} $SLURM_ARRAY_TASK_ID/{count}"]
        submitted = call_slurm(command)
        if submitted.returncode:
            raise KinspanError(f"--executor slurm: sbatch refuses the job: {' '.join(submitted.stderr.split())}")
        return submitted.stdout.strip().partition(";")[0]


def read_failure(stage: Stage, task: int) -> dict[str, str | bool]:
    try:
        return json.loads((stage.folder / f"{task:05d}.failed").read_text())
    except (OSError, ValueError):
        return {"reason": "it was killed or stopped", "known": False}


def call_slurm(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise KinspanError(f"--executor slurm: {command[0]} cannot be called here: {error.strerror}") from error


def is_queued(job: str) -> bool:
    """Tells whether the job is waiting or running."""
    for _ in range(QUEUE_TRIES):
        answer = call_slurm(["squeue", "--noheader", "--jobs", job])
        if not answer.returncode or "Invalid job id" in answer.stderr:  # for a job that ended long ago
            return bool(answer.stdout.strip())
        time.sleep(POLL_SECONDS)
    raise KinspanError(f"--executor slurm: squeue does not answer; the same command again waits for job {job}")


if __name__ == "__main__":  # a job of Slurm: the tasks K, K + N and so on of a pickled stage, for a share "K/N"
    pickled, share = sys.argv[1:]
    first, step = map(int, share.split("/"))
    task_work, stage_folder, numbers = pickle.loads(Path(pickled).read_bytes())
    for task_number in numbers[first::step]:
        run_task(task_work, stage_folder, task_number)
