"""Runs checks, each in a process of its own, all within one budget.

A check that hangs is ended, one that fails is named with its error's last line, and one for which too little time is
left is not begun; the results of the others stand. The next stage's processes start, and import, while a stage runs.

Standard library only: this process must not use what is unpacked for the others.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .plan import LATEST, Check

PASSED, FAILED, ENDED, NO_TIME = "passed", "failed", "ended at its limit", "skipped"


@dataclass(frozen=True)
class Outcome:
    """How a check ended.

    outcome: PASSED, FAILED, ENDED or NO_TIME
    error:   for FAILED the last line that it wrote, usually that of a traceback; for NO_TIME what it lacked
    """

    check: str
    outcome: str
    seconds: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        took = f", {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.check}: {self.outcome}{took}{': ' * bool(self.error)}{self.error}"


def run_checks(
    stages: Sequence[Sequence[Check]],
    program: Sequence[str],
    settings: dict[str, Any],
    folder: Path,
    deadline: float,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Runs the stages in order, the checks of a stage all at once, and returns how each ended.

    program:  the command of a worker. It reads one line of JSON from its standard input, the check and ``settings``,
              and appends its rows to ``folder/results.jsonl``, where outcomes go, too
    folder:   also gets ``log.txt``, all that the workers wrote
    deadline: of ``time.monotonic()``; checks that run then are ended
    tell:     is given a line as each check begins and ends
    """
    workers: dict[str, tuple[subprocess.Popen, Path]] = {}
    outcomes: list[Outcome] = []

    def start(check: Check) -> None:
        log = folder / f"worker-{len(workers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=file, stderr=file, process_group=0)
        workers[check.name] = process, log

    def begin(check: Check, left: float) -> bool:
        if fits := check.seconds <= left:
            tell(f"{check.name} ... ({check.seconds:.0f} s)")
            task = {"check": check.name, "function": check.function, **settings}
            with suppress(BrokenPipeError), workers[check.name][0].stdin as pipe:  # of one that has failed already
                pipe.write((json.dumps(task) + "\n").encode())
        return fits

    def close(check: Check, outcome: Outcome) -> None:
        process, log = workers[check.name]
        _kill_group(process)
        with (folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"===== {check.name}\n{log.read_text(encoding='utf-8', errors='replace')}\n")
        append_line(folder / "results.jsonl", {"type": "outcome", **asdict(outcome)})
        tell(str(outcome))
        outcomes.append(outcome)

    stages = [stage for stage in stages if stage]
    try:
        for check in stages[0]:
            start(check)
        for number, stage in enumerate(stages, start=1):
            for later in stages[number : number + 1]:
                for check in later:
                    start(check)
            began = time.monotonic()
            left = deadline - began - sum(check.reserved for later in stages[number:] for check in later)
            begun = {check.name: begin(check, left) for check in stage}
            for check in stage:
                if begun[check.name]:
                    end = began + min(LATEST * check.seconds, left)
                    close(check, _wait(check, *workers[check.name], began, end))
                else:
                    close(
                        check, Outcome(check.name, NO_TIME, 0.0, f"it takes {check.seconds:.0f} s of {left:.0f} left")
                    )
    finally:
        for process, log in workers.values():
            _kill_group(process)
            log.unlink()
    return outcomes


def _wait(check: Check, process: subprocess.Popen, log: Path, began: float, end: float) -> Outcome:
    try:
        status = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Outcome(check.name, ENDED, time.monotonic() - began)
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(check.name, PASSED, seconds)
    said = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = [line.strip() for line in said if line.strip()][-1:] or ["it wrote nothing"]
    return Outcome(check.name, FAILED, seconds, f"signal {-status}; {last[0]}" if status < 0 else last[0])


def _kill_group(process: subprocess.Popen) -> None:
    """Ends a worker and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        with suppress(BrokenPipeError):
            process.stdin.close()


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Adds one line of JSON to a file, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
