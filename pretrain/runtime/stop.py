"""Requests to stop: signals, a time limit, a launcher that died. A run then ends after the step, with a checkpoint."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

STATUS = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on where this ended
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_LAUNCHER = re.compile(r"(.*/)?(deepspeed|torchrun)|deepspeed\.launcher\.\w+|torch\.distributed\.(run|launch)")
AGAIN = 2.0  # seconds: a launcher hands on a Ctrl-C that the terminal has already sent to every process


class Stopped(SystemExit):
    """The run was asked to stop and wrote a checkpoint; the process ends with status 75 unless this is caught."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class StopRequest:
    """``reason`` says why this process was asked to stop; None: go on."""

    def __init__(self, max_hours: float | None) -> None:
        self.reason: str | None = None
        self.max_hours, self.began, self.asked = max_hours, time.monotonic(), 0.0

    def ask(self, reason: str) -> None:
        if self.reason is None:
            self.reason, self.asked = reason, time.monotonic()

    def wanted(self) -> bool:
        if self.max_hours is not None and time.monotonic() - self.began > self.max_hours * 3600:
            self.ask(f"--max_hours {self.max_hours:g} are over")
        return self.reason is not None

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        name = signal.Signals(number).name
        if self.reason is not None and time.monotonic() - self.asked > AGAIN:
            os.write(2, f"{name} again: ending at once\n".encode())
            os._exit(128 + number)
        first = self.reason is None
        self.ask(name)
        if first and os.environ.get("RANK", "0") == "0":
            os.write(2, f"{name}: ending after this step, with a checkpoint; once more ends at once\n".encode())


_listening: list[StopRequest] = []  # the request of the outermost block that runs now


@contextmanager
def listen_for_stop(max_hours: float | None = None) -> Iterator[StopRequest]:
    """Takes the signals, and watches the launcher, while the block runs.

    A block within another one shares the request of the outermost, whose ``max_hours`` count: a command of several runs
    listens once for all of them.
    """
    if _listening:
        yield _listening[0]
        return
    request, done = StopRequest(max_hours), threading.Event()
    before = {}
    if threading.current_thread() is threading.main_thread():  # else Python allows no handlers
        before = {number: signal.signal(number, request.on_signal) for number in SIGNALS}
    chain = find_launchers(psutil.Process())  # before the block begins: nothing that happens in it is missed
    threading.Thread(target=_watch_launcher, args=(chain, request.ask, done), daemon=True).start()
    _listening.append(request)
    try:
        yield request
    finally:
        _listening.clear()
        done.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch_launcher(chain: list[psutil.Process], ask: Callable[[str], None], done: threading.Event) -> None:
    """DeepSpeed's launcher dies of a SIGTERM at once, and leaves its ranks running."""
    if is_orphaned(chain):
        ask("the launcher is gone")
    while chain and not done.wait(1.0):
        if not all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in chain):
            ask("the launcher is gone")
            return


def find_launchers(process: psutil.Process) -> list[psutil.Process]:
    """The processes above this one that started it as a rank: DeepSpeed's or torch's launcher; none if by hand."""
    return [parent for parent in process.parents() if _is_launcher(parent)]


def _is_launcher(process: psutil.Process) -> bool:
    try:
        return any(_LAUNCHER.fullmatch(argument) for argument in process.cmdline()[:5])
    except psutil.Error:  # it ended while we looked, or is not ours to look at
        return False


def is_orphaned(chain: list[psutil.Process]) -> bool:
    """Whether a launcher ended before its rank looked: its variables are there, but it is not."""
    if not chain:
        return "CROSS_SIZE" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    try:
        flags = {argument.partition("=")[0] for argument in chain[0].cmdline()}
    except psutil.Error:
        return True
    # Of what `deepspeed` hands to the launcher of ranks: the first flag always, the second for other machines only
    by_deepspeed_here = "--enable_each_rank_log" in flags and "--node_rank" not in flags
    return by_deepspeed_here and len(chain) < 2
