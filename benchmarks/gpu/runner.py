"""Runs checks one after another, each in a process and within a time limit of its own, all within one budget.

A check that hangs is ended at its limit, one that fails is named with its error's last line, and one for which no time
is left is listed; the results of the others stand. The next check's process starts, and imports, while a check runs.

Standard library only: this process must not use what is unpacked for the others.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEAST = 15.0  # seconds; with less left, a check is not begun
PASSED, FAILED, ENDED, NO_TIME = "passed", "failed", "ended at its limit", "did not fit"


@dataclass(frozen=True)
class Check:
    """One check.

    name:     how the report calls it
    function: ``module:function`` of benchmarks.gpu: a generator of rows, see worker.py
    limit:    seconds after which it is ended
    """

    name: str
    function: str
    limit: float


@dataclass(frozen=True)
class Outcome:
    """How a check ended.

    outcome: PASSED, FAILED, ENDED or NO_TIME
    error:   for FAILED the last line that it wrote, usually that of a traceback
    """

    check: str
    outcome: str
    seconds: float = 0.0
    error: str = ""


@dataclass
class _Worker:
    process: subprocess.Popen
    log: Path


def run_checks(
    checks: Sequence[Check],
    program: Sequence[str],
    settings: dict[str, Any],
    folder: Path,
    deadline: float,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Runs the checks in order, and returns how each ended.

    program:  the command of a worker. It reads one line of JSON from its standard input, the check and ``settings``,
              and appends its rows to ``folder/results.jsonl``, where outcomes go, too
    folder:   also gets ``log.txt``, all that the workers wrote
    deadline: of ``time.monotonic()``; a check that runs then is ended
    tell:     is given a line as each check begins and ends
    """
    outcomes = []
    with _workers(program, folder) as start:
        worker = start()
        for number, check in enumerate(checks):
            left = deadline - time.monotonic()
            if left < LEAST:
                outcomes.append(Outcome(check.name, NO_TIME))
            else:
                following = start() if number + 1 < len(checks) else None
                tell(f"{check.name} ...")
                outcomes.append(_run_one(check, worker, settings, min(check.limit, left)))
                _keep_log(worker, folder / "log.txt", check.name)
                worker = following or worker
            append_line(folder / "results.jsonl", {"type": "outcome", **asdict(outcomes[-1])})
            tell(_describe(outcomes[-1]))
    return outcomes


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Adds one line of JSON to a file, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


@contextmanager
def _workers(program: Sequence[str], folder: Path) -> Iterator[Callable[[], _Worker]]:
    """Within it, starts workers; leaves no process behind."""
    started: list[_Worker] = []

    def start() -> _Worker:
        log = folder / f"worker-{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, text=True, process_group=0
            )
        started.append(_Worker(process, log))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            _end(worker.process)
            worker.log.unlink(missing_ok=True)


def _run_one(check: Check, worker: _Worker, settings: dict[str, Any], limit: float) -> Outcome:
    process, began = worker.process, time.monotonic()
    assert process.stdin
    with suppress(BrokenPipeError):  # it has ended already; its log says why
        process.stdin.write(json.dumps({"check": check.name, "function": check.function, **settings}) + "\n")
        process.stdin.close()
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return Outcome(check.name, ENDED, limit)
    finally:
        _end(process)
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(check.name, PASSED, seconds)
    lines = worker.log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return Outcome(check.name, FAILED, seconds, last if status > 0 else f"signal {-status}; {last}")


def _end(process: subprocess.Popen) -> None:
    """Ends a worker and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _keep_log(worker: _Worker, log: Path, name: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"===== {name}\n{worker.log.read_text(encoding='utf-8', errors='replace')}\n")


def _describe(outcome: Outcome) -> str:
    said = f": {outcome.error}" if outcome.error else ""
    return f"{outcome.check}: {outcome.outcome}, {outcome.seconds:.0f} s{said}"
