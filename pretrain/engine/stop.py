"""Requests to stop: a signal, a time limit, or the death of the launcher. The run then ends with a checkpoint."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from data_pipeline.core.progress import write_at_once
from pretrain.engine.world import DEEPSPEED_VARIABLE

STATUS = 75  # EX_TEMPFAIL of sysexits.h: the same command resumes the run
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
REPEAT_SECONDS = 2.0  # a signal repeated within this time is the first one, passed on by the launcher
# DeepSpeed's, torch's and accelerate's launchers set one of these for their ranks; the last also for a single process.
LAUNCHER_VARIABLES = (DEEPSPEED_VARIABLE, "TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")


class Stopped(SystemExit):
    """Raised once a run that was asked to stop has written a checkpoint. Uncaught, it ends with status 75."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class Interrupted(Exception):
    """Raised between two forward passes of a validation, if a rank was asked to stop."""


class StopRequest:
    """Holds the reason why this process was asked to stop; None if it was not.

    has_updated: an update was made in this start. Only then do the hours count, so that every start makes progress.
    """

    def __init__(self, max_hours: float | None) -> None:
        self.reason: str | None = None
        self.has_updated = False
        self.max_hours, self.began, self.asked_at = max_hours, time.monotonic(), 0.0

    def ask(self, reason: str) -> None:
        """Asks for a stop; the first reason counts."""
        if self.reason is None:
            self.reason, self.asked_at = reason, time.monotonic()

    def wanted(self) -> bool:
        """Returns whether this process was asked to stop, or its time is over."""
        if self.has_updated and self.max_hours is not None and time.monotonic() - self.began > self.max_hours * 3600:
            self.ask(f"--max_hours {self.max_hours:g} are over")
        return self.reason is not None

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        """Asks for a stop at the first signal, and ends the process at once at the second."""
        name = signal.Signals(number).name
        if self.reason is not None and time.monotonic() - self.asked_at > REPEAT_SECONDS:
            write_at_once(f"{name} again: ending at once")
            os._exit(128 + number)
        is_first = self.reason is None
        self.ask(name)
        if is_first and os.environ.get("RANK", "0") == "0":
            write_at_once(f"{name}: ending with a checkpoint, after a step or two; a second one ends at once")


_listening: list[StopRequest] = []  # the request of the active ``listen_for_stop``, if any
interrupts: list[Callable[[], bool]] = []  # in a validation: asks, on all ranks together, whether to stop


def interrupt_if_asked() -> None:
    """Raises Interrupted in the validation of a run that was asked to stop; called before each forward pass."""
    if any(is_asked() for is_asked in interrupts):
        raise Interrupted


@contextmanager
def listen_for_stop(max_hours: float | None = None) -> Iterator[StopRequest]:
    """In the block, signals and the launcher's death ask for a stop. A block within another shares its request."""
    if _listening:
        yield _listening[0]
        return
    request, done = StopRequest(max_hours), threading.Event()
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # Python allows signal handlers nowhere else
        handlers = {number: signal.signal(number, request.on_signal) for number in SIGNALS}
    if any(name in os.environ for name in LAUNCHER_VARIABLES):
        launchers = find_launchers(psutil.Process())  # before the block begins, so that no death in it is missed
        threading.Thread(target=_watch_launchers, args=(launchers, request.ask, done), daemon=True).start()
    _listening.append(request)
    try:
        yield request
    finally:
        _listening.clear()
        done.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _watch_launchers(launchers: list[psutil.Process], ask: Callable[[str], None], done: threading.Event) -> None:
    """Asks for a stop once a launcher is gone. DeepSpeed's exits at once on SIGTERM, and its ranks run on."""
    while launchers and all(map(is_running, launchers)):
        if done.wait(1.0):
            return
    ask("the launcher is gone")


def find_launchers(rank: psutil.Process) -> list[psutil.Process]:
    """Returns the processes of the rank's launcher; none if the launcher has died already.

    The launcher is the nearest Python ancestor; if torch's is called as a library, the parent that multiprocessing
    knows. The command ``deepspeed`` is returned with the launcher that it started, because users signal the command.
    """
    ancestors = rank.parents()
    if caller := multiprocessing.parent_process():
        return [process for process in ancestors if process.pid == caller.pid]
    index = next((index for index, process in enumerate(ancestors) if _runs_python(process)), None)
    if index is None:
        return []
    parent = ancestors[index + 1 : index + 2] if DEEPSPEED_VARIABLE in os.environ else []
    return [ancestors[index], *filter(_runs_python, parent)]


def _runs_python(process: psutil.Process) -> bool:
    try:
        return Path(process.exe()).name.startswith("python")
    except psutil.Error:  # it has just ended, or belongs to another user, and so did not start the rank
        return False


def is_running(process: psutil.Process | int) -> bool:
    """Returns whether a process of this machine, or the one with this id, runs; a zombie does not."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
