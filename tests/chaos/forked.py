"""A rank as a fork of this process, which has imported everything: the same program, started in a tenth of the time."""

import atexit
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.programs import import_libraries


def warm_up() -> None:
    """Imports what launch/pretrain.py needs. No threads, no groups: those must be each fork's own."""
    import_libraries()
    import finetune.training.train  # noqa: F401
    import pretrain.run  # noqa: F401


class Forked:
    """What of subprocess.Popen the chaos needs."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        warm_up()
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(program, environment, log)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode


def _become(program: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Runs the program as a fresh interpreter would, up to its exit status; never returns."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        with log.open("a") as file, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = list(program)
        try:
            runpy.run_path(program[0], run_name="__main__")
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
