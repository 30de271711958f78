"""A stage of the engine: numbered tasks that do not depend on one another, and what is known of them while they run.

A task writes its output under another name and renames it when it is whole, so that a task may be killed at any moment
and done again. Its notes lie in the stage's folder: ``completions/`` (marks of tasks that are done), ``logs/``,
``failures/`` and ``progress/``. Whatever machine a task runs on, these are how the others learn of it.
"""

import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import KinspanError, quote_error

NOTE_SECONDS = 0.5  # between two notes of how far a task is
NOTE_BYTES = 2000  # that a note of a failure has room for
UNTOLD = "it was killed or stopped before it could say why"


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
        with suppress(OSError):  # a full disk is the business of what is written beside it
            self.file.write_text(str(self.done))


Work = Callable[[int, Progress], None]


@dataclass(frozen=True)
class Stage:
    """What is done, and to whom it is said.

    name:   of the stage's folder
    title:  of its progress bar
    work:   does the task of a number; it is pickled for every task, so what is large lies in files that it names
    sizes:  of each task, its share of the work in any unit: the largest go first
    names:  what each task works on, as an error names it
    folder: holds the stage's notes
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

    def find_failures(self, tasks: list[int]) -> dict[int, dict]:
        """Find why these tasks have failed: ``{task: {"reason", "known", "errno"}}``."""
        return {task: _read_failure(self.folder / f"failures/{task:05d}") for task in tasks}


def _read_failure(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {"reason": UNTOLD, "known": False, "errno": None}


@dataclass(frozen=True)
class Task:
    """The one step of a stage's pipeline, as datatrove calls it. It keeps an error to itself and writes it down.

    datatrove marks a task as done when its steps return, unless there is a note of a failure (see
    ``executors.KeepFailures``); an error that came out would end the tasks beside it, and show a traceback.
    """

    work: Work
    folder: Path

    def __repr__(self) -> str:
        return type(self.work).__name__

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        from datatrove.utils.logging import logger

        failure, progress = (self.folder / f"{kind}/{rank:05d}" for kind in ("failures", "progress"))
        for path in (failure, progress):
            path.parent.mkdir(parents=True, exist_ok=True)
        failure.write_text(" " * NOTE_BYTES)  # it stays if the task is killed, and has room if the disk is full
        note, began = Progress(progress), time.monotonic()
        logger.info("task {} of {} begins: {!r}", rank, world_size, self)
        try:
            self.work(rank, note)
            note.write()
            failure.unlink()
            logger.info("done, {} documents in {:.1f} s", note.done, time.monotonic() - began)
        except Exception as error:
            logger.opt(exception=True).warning("the task failed")
            _write_failure(failure, error)


def _write_failure(path: Path, error: Exception) -> None:
    known = isinstance(error, KinspanError)
    note = {
        "reason": str(error) if known else quote_error(error),
        "known": known,
        "errno": getattr(error, "errno", None),
    }
    with path.open("r+") as file:
        file.write(json.dumps(note))


def measure_peak() -> int:
    """Measure the most memory that this program has had so far, in bytes.

    Linux's VmHWM: getrusage also counts what the process that started this one had at that moment.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def show_progress(stage: Stage, quiet: bool) -> Iterator[None]:
    """Show a bar of the stage's documents, and how many tasks are done, from the notes in its folder."""
    if quiet:
        yield
        return
    ended = threading.Event()
    total = len(stage.sizes) if stage.unit == "tasks" else stage.total
    with tqdm(desc=stage.title, unit=f" {stage.unit}", total=total, mininterval=0.5) as bar:
        notes = _Notes(stage)

        def watch() -> None:
            while not ended.wait(NOTE_SECONDS):
                notes.show(bar)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            notes.show(bar)


class _Notes:
    """What the notes of a stage's tasks have said so far; those of tasks that are done are read once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.documents: dict[str, int] = {}  # of each task
        self.final: set[str] = set()

    def show(self, bar: tqdm) -> None:
        completed = _list(self.stage.folder / "completions")
        if self.stage.unit == "tasks":
            bar.update(len(completed) - bar.n)
            return
        for name in set(_list(self.stage.folder / "progress")) - self.final:
            with suppress(OSError, ValueError):  # it is being written
                self.documents[name] = int((self.stage.folder / "progress" / name).read_text())
        self.final.update(completed)
        if len(self.stage.sizes) > 1:
            bar.set_postfix_str(f"{len(completed)} of {len(self.stage.sizes)} tasks", refresh=False)
        bar.update(sum(self.documents.values()) - bar.n)


def _list(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
