"""Where the tasks of a stage run: in processes of this machine, on Slurm or on Ray, by datatrove's executors.

datatrove marks what is done and keeps a log of each task, so that a stage goes on where it was. What is here lets one
task fail without the others (on this machine too, where datatrove's pool would end, or wait for ever for a process
that was killed), and waits for Slurm's tasks.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

from datatrove.executor.base import DistributedEnvVars, PipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.utils.logging import logger

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.files import describe_write_error

from .execution import NEEDED_SBATCH, Execution
from .stage import Stage, Task, show_progress

ROOT = Path(__file__).resolve().parents[3]  # what a process elsewhere finds the packages by
PARENT_SECONDS = 0.5  # how soon a worker notices that the process that started it is gone
POLL_SECONDS = 5.0  # between two looks at Slurm's queue
QUEUE_TRIES = 60  # looks in vain after which Slurm is taken to be gone
WORKER_DIED = "a worker process died (killed, perhaps for memory): run again with a smaller --num_workers"


class KeepFailures(PipelineExecutor):
    """Marks a task as done only where it left no note of a failure, see ``stage.Task``."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> Any:
        with contextlib.redirect_stderr(io.StringIO()):  # the log has it, and the note what people need of it
            return super()._run_for_rank(rank, 1, node_rank)

    def mark_rank_as_completed(self, rank: int) -> None:
        if not self.logging_dir.isfile(f"failures/{rank:05d}"):
            super().mark_rank_as_completed(rank)


class LocalTasks(KeepFailures):
    """Runs tasks in this process, or in those of a pool that is kept for all stages."""

    def __init__(self, pipeline: list, tasks: int, logging_dir: str) -> None:
        super().__init__(pipeline, logging_dir)
        self.tasks = tasks

    @property
    def world_size(self) -> int:
        return self.tasks

    def get_distributed_env(self, node_rank: int = -1) -> DistributedEnvVars:
        return DistributedEnvVars(
            datatrove_node_ips="localhost",
            datatrove_cpus_per_task="1",
            datatrove_mem_per_cpu="-1",
            datatrove_gpus_on_node="0",
            datatrove_executor="LOCAL",
        )

    def run(self) -> None:
        for task in self.get_incomplete_ranks():
            self.run_task(task)

    def run_task(self, task: int) -> None:
        self._run_for_rank(task)


class SlurmTasks(KeepFailures, SlurmPipelineExecutor):
    """Submits tasks to Slurm as an array of jobs."""

    def launch_merge_stats(self) -> None:
        """Submit no job that merges datatrove's own statistics, which nobody reads."""


class RayTasks(KeepFailures, RayPipelineExecutor):
    """Runs tasks on the Ray cluster that RAY_ADDRESS names, or else on this machine."""


class Engine:
    """Runs stages one after another. Used in a ``with`` statement, at whose end its processes end."""

    def __init__(self, execution: Execution, quiet: bool) -> None:
        self.execution, self.quiet = execution, quiet
        self.seconds: dict[str, float] = {}  # that each stage took
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Engine":
        logger.disable("datatrove")  # what it says of its own steps is not for the user's screen
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        logger.enable("datatrove")
        if self._pool:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, stage: Stage) -> None:
        """Run the tasks of a stage that are not done. Raises KinspanError where one fails, after all others are done.

        It names the task. Where the disk is full, it does not wait for the others.
        """
        began = time.monotonic()
        pipeline, tasks, folder = [Task(stage.work, stage.folder)], len(stage.sizes), str(stage.folder)
        stage.folder.mkdir(parents=True, exist_ok=True)
        with show_progress(stage, self.quiet):
            if self.execution.executor == "slurm":
                executor: PipelineExecutor = self._run_on_slurm(stage, pipeline)
            elif self.execution.executor == "ray":
                start_ray(self.execution.num_workers)
                workers = self.execution.num_workers
                executor = RayTasks(pipeline, tasks, workers, logging_dir=folder, mem_per_cpu_gb=1)
                executor.run()
            else:
                executor = LocalTasks(pipeline, tasks, folder)
                self._run_here(stage, executor)
        self.seconds[stage.name] = time.monotonic() - began
        if failed := executor.get_incomplete_ranks():
            raise KinspanError(explain_failures(stage, failed))

    def _run_here(self, stage: Stage, executor: LocalTasks) -> None:
        ahead = sorted(executor.get_incomplete_ranks(), key=lambda task: (-stage.sizes[task], task))
        if self.execution.num_workers == 1 or len(stage.sizes) == 1:
            for task in ahead:
                executor.run_task(task)
                if _is_disk_full(stage, task):
                    return
            return
        self._pool = self._pool or make_pool(self.execution.num_workers)
        running: dict[Future, int] = {}
        try:
            while ahead or running:
                while ahead and len(running) < self.execution.num_workers:
                    task = ahead.pop(0)
                    running[self._pool.submit(executor.run_task, task)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    if _is_disk_full(stage, running.pop(future)):
                        ahead.clear()
        except BrokenProcessPool as error:
            raise KinspanError(WORKER_DIED) from error

    def _run_on_slurm(self, stage: Stage, pipeline: list) -> PipelineExecutor:
        asked = dict(self.execution.sbatch)
        partition, limit = (asked.pop(name) for name in NEEDED_SBATCH)
        executor = SlurmTasks(
            pipeline,
            len(stage.sizes),
            limit,
            partition,
            mem_per_cpu_gb=2,
            workers=self.execution.num_workers,
            job_name=f"kinspan-{stage.name}",
            qos=asked.pop("qos", ""),
            env_command=f"export PATH={shlex.quote(f'{sys.prefix}/bin')}:$PATH PYTHONPATH={shlex.quote(str(ROOT))}",
            sbatch_args=asked,
            logging_dir=str(stage.folder),
        )
        job = stage.folder / "job"
        if executor.get_incomplete_ranks() and not (job.exists() and _is_queued(job.read_text())):
            try:
                executor.run()
            except (OSError, subprocess.CalledProcessError) as error:
                raise KinspanError(f"--executor slurm: sbatch does not take the job: {quote_error(error)}") from error
            job.write_text(str(executor.job_id))
        while executor.get_incomplete_ranks():
            queued = _is_queued(job.read_text())
            time.sleep(POLL_SECONDS)  # after the job's end, too: its last notes may take a moment to be seen here
            if not queued:
                break
        return executor


def explain_failures(stage: Stage, failed: list[int]) -> str:
    """Say in one line which tasks failed, and why the first of them did."""
    notes = stage.find_failures(failed)
    first = next((task for task in failed if notes[task]["known"]), failed[0])
    note = notes[first]
    if note["errno"] in (ENOSPC, EDQUOT):
        return describe_write_error(stage.folder, OSError(note["errno"], os.strerror(note["errno"])))
    others = f" (and {len(failed) - 1} more of {len(stage.sizes)} tasks failed)" if len(failed) > 1 else ""
    if note["known"]:
        return note["reason"] + others
    return (
        f"{stage.title} failed for {stage.names[first]}{others}: {note['reason']}; what the others did is kept, and "
        f"the same command goes on from there; {stage.folder}/logs/task_{first:05d}.log has more"
    )


def _is_disk_full(stage: Stage, task: int) -> bool:
    path = stage.folder / f"failures/{task:05d}"
    return path.exists() and stage.find_failures([task])[task]["errno"] in (ENOSPC, EDQUOT)


def make_pool(num_workers: int) -> ProcessPoolExecutor:
    """Make worker processes that leave Ctrl-C to this one, and end when it is gone."""
    context = multiprocessing.get_context("spawn")  # forking a process that has threads is unsafe
    return ProcessPoolExecutor(num_workers, context, _start_worker, (os.getpid(),))


def _start_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_ray(num_workers: int) -> None:
    """Connect to the Ray cluster that RAY_ADDRESS names, or else start one on this machine.

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
