"""What an adaptation tells while it works; what its steps print goes to a log."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import TextIOBase
from pathlib import Path
from typing import Any, TextIO

from .duration import Forecast

QUIET = 60.0  # seconds without a line after which one is told
UPDATE = re.compile(r"\bstep (\d+)/(\d+) +(\w+)")  # as the logs of both trainings have it
VALIDATION = ("dev", "validation")  # what such a line calls it
UNMEASURED = "no validation: "  # how a pre-training begins a line, if its corpus gives no held-out pairs

Say = Callable[[str], Any]


@contextmanager
def log_steps(path: Path, forecast: Forecast, say: Say) -> Iterator["Teller"]:
    """Sends what is printed to the log, and yields what tells a line; a long silence is broken by how far it is."""
    with path.open("a", encoding="utf-8", buffering=1) as log:
        teller, ended = Teller(log, forecast, say), threading.Event()

        def watch() -> None:
            while not ended.wait(1.0):
                teller.break_silence()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            with redirect_stdout(teller):
                yield teller
        finally:
            ended.set()
            watcher.join()


class Teller(TextIOBase):
    """Writes to the log, and tells how long the rest will take: once in detail, and after QUIET seconds of silence.

    advice: told with the first forecast, where that is long
    """

    def __init__(self, log: TextIO, forecast: Forecast, tell_user: Say) -> None:
        self.log, self.forecast, self.tell_user, self.told = log, forecast, tell_user, time.monotonic()
        self.is_forecast, self.advice = False, ""
        self.updates = ""  # how far the training is, as its last line says

    def say(self, line: str) -> None:
        self.tell_user(line)
        self.told = time.monotonic()

    def begin_stage(self, line: str) -> None:
        """Tells what begins, and how long it will take where that is known."""
        self.forecast.begin_stage()
        self.updates = ""
        left = self.forecast.tell_stage()
        durations = f"\n  this takes about {left}, and all that is left {self.forecast.tell_all()}" if left else ""
        self.say(line + durations)

    def write(self, text: str) -> int:
        if text.startswith(UNMEASURED):
            self.say("  how well it learns will not be measured: too few documents are held out for pairs")
        if update := UPDATE.search(text):
            step, total = int(update[1]), int(update[2])
            self.forecast.count(step, total, update[3] in VALIDATION)
            self.updates = f"{step} of {total} updates" if step < total else ""
            left = self.forecast.tell_all()
            if left and not self.is_forecast:
                self.is_forecast = True
                self.say(f"  at the present speed about {left} are left ({self.forecast.list_kinds()})")
                if self.advice and self.forecast.is_long:
                    self.say(self.advice)
        return self.log.write(text)

    def break_silence(self) -> None:
        """Tells how far it is, after QUIET seconds without a line."""
        if time.monotonic() - self.told > QUIET:
            left = self.forecast.tell_all() if self.updates else ""
            done = self.updates or "still at it"
            self.say(f"  {done}; about {left} left in all" if left else f"  {done}")

    def flush(self) -> None:
        self.log.flush()
