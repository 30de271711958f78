"""Runs checks, each in a process and within a time limit of its own, all within one budget.

A check that hangs is ended at its limit, one that fails is named with its error's last line, and one for which no time
is left is listed; the results of the others stand. The next stage's processes start, and import, while a stage runs.

Standard library only: this process must not use what is unpacked for the others.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEAST = 15.0  # seconds; with less left, a check is not begun
PASSED, FAILED, ENDED, NO_TIME = "passed", "failed", "ended at its limit", "did not fit"


@dataclass(frozen=True)
class Check:
    """One check.

    name:     how the report calls it
    function: ``module:function`` of benchmarks.gpu, and arguments after more colons: a generator of rows, see worker.py
    limit:    seconds after which it is ended
    reserved: seconds of the budget that the checks before it do not get
    """

    name: str
    function: str
    limit: float
    reserved: float = 0.0


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

    def __str__(self) -> str:
        took = f", {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.check}: {self.outcome}{took}{': ' * bool(self.error)}{self.error}"


@dataclass(frozen=True)
class Worker:
    """A process that waits to be told its check, in a group of its own, and what it and its children write."""

    process: asyncio.subprocess.Process
    log: Path

    async def end(self) -> str:
        """Ends it and all that it has started; returns what they wrote."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdin:
            self.process.stdin.close()
        await self.process.wait()
        return self.log.read_text(encoding="utf-8", errors="replace")


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
    workers: dict[str, Worker] = {}

    async def start(stage: Sequence[Check]) -> None:
        for check in stage:
            log = folder / f"worker-{len(workers)}.log"
            with log.open("wb") as file:
                pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": file, "stderr": file}
                process = await asyncio.create_subprocess_exec(*program, **pipes, process_group=0)
            workers[check.name] = Worker(process, log)

    async def run(check: Check, left: float) -> Outcome:
        worker, outcome = workers[check.name], Outcome(check.name, NO_TIME)
        if left >= LEAST:
            tell(f"{check.name} ...")
            outcome = await _run_one(check, worker, settings, min(check.limit, left))
        said = await worker.end()
        with (folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"===== {check.name}\n{said}\n")
        append_line(folder / "results.jsonl", {"type": "outcome", **asdict(outcome)})
        tell(str(outcome))
        return outcome

    async def run_all() -> list[Outcome]:
        outcomes: list[Outcome] = []
        wanted = [stage for stage in stages if stage]
        try:
            await start(wanted[0])
            for number, stage in enumerate(wanted, start=1):
                await start(wanted[number] if number < len(wanted) else [])
                left = deadline - time.monotonic() - sum(check.reserved for later in wanted[number:] for check in later)
                outcomes += await asyncio.gather(*(run(check, left) for check in stage))
        finally:
            for worker in workers.values():
                await worker.end()
                worker.log.unlink()
        return outcomes

    return asyncio.run(run_all())


async def _run_one(check: Check, worker: Worker, settings: dict[str, Any], limit: float) -> Outcome:
    began, process = time.monotonic(), worker.process
    told = json.dumps({"check": check.name, "function": check.function, **settings}) + "\n"
    try:
        await asyncio.wait_for(process.communicate(told.encode()), limit)
    except TimeoutError:
        return Outcome(check.name, ENDED, limit)
    seconds, status = time.monotonic() - began, process.returncode
    if status == 0:
        return Outcome(check.name, PASSED, seconds)
    lines = [line.strip() for line in (await worker.end()).split("\n") if line.strip()] or ["it wrote nothing"]
    return Outcome(check.name, FAILED, seconds, f"signal {-status}; {lines[-1]}" if status < 0 else lines[-1])


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Adds one line of JSON to a file, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
