"""One start of a run: its processes, a strike at a chosen moment, and how it ended."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from .faults import Fault
from .materials import ROOT

LEAVE = 45.0  # seconds that what is left of a run may take to end after its launcher
RESUMING = re.compile(r"resuming from \S+ at step (\d+)")


@dataclass
class Outcome:
    """How one start ended.

    statuses:   the launcher's, or without one each rank's
    struck:     the fault came before the end; inside: while a checkpoint was being written
    reached:    the last step that the log shows, resumed_at: where this start went on; None: from the beginning
    first_step: seconds from the command to the first line of the log
    hung:       was not over after its time;  orphans: processes that were left when it should have been over
    """

    statuses: list[int] = field(default_factory=list)
    fault: Fault | None = None
    struck: bool = False
    inside: bool = False
    reached: int = 0
    resumed_at: int | None = None
    first_step: float | None = None
    hung: bool = False
    orphans: int = 0
    output: str = ""

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if re.match(r"(\[rank \d+\] )?error: ", line)]


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, **fixed, "PATH": path, **more}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


LIVE: list["Start"] = []  # so that Ctrl-C leaves none


class Start:
    """A started run, by DeepSpeed's launcher, or by hand: each rank a process. ``entry`` may do harm from within."""

    def __init__(
        self,
        settings: dict[str, Any],
        world: int,
        log: Path,
        launcher: str = "deepspeed",
        entry: str = "launch/pretrain.py",
        **variables: str,
    ) -> None:
        self.folder, self.log, self.launcher = Path(settings["output_dir"]), log, launcher
        self.partial_before, self.metrics_before = set(self.partial()), self._metrics_file()
        self.first_step: float | None = None
        self.ranks: list[psutil.Process] = []
        program = [str(ROOT / entry), *(f"--{k}={v}" for k, v in settings.items())]
        LIVE.append(self)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        log.write_text("")
        self.top: list[Any] = []
        with log.open("a") as file:
            common: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            if launcher == "deepspeed":
                command = ["deepspeed", "--num_accelerators", str(world), "--master_port", free_port(), *program]
                env = environment(**variables)
                self.top = [subprocess.Popen(command, env=env, start_new_session=True, cwd=ROOT, **common)]
                return
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world)}
            for rank in range(world):
                env = environment(**variables, **address, RANK=str(rank), LOCAL_RANK=str(rank))
                command = [sys.executable, *program]
                self.top.append(subprocess.Popen(command, env=env, start_new_session=True, cwd=ROOT, **common))

    def partial(self) -> list[str]:
        """Checkpoints that are being written."""
        try:
            with os.scandir(self.folder / "checkpoints") as entries:
                return [e.name for e in entries if e.name.startswith("step-") and e.name.endswith(".tmp")]
        except FileNotFoundError:
            return []

    def writing(self) -> list[str]:
        return [name for name in self.partial() if name not in self.partial_before]

    def _metrics_file(self) -> int | None:
        with suppress(FileNotFoundError):
            return (self.folder / "metrics.jsonl").stat().st_ino
        return None

    def look(self) -> None:
        """Notes the first line of the log: until then the file is another one, or as the start cut it."""
        if self.first_step is not None:
            return
        with suppress(FileNotFoundError):
            now = (self.folder / "metrics.jsonl").stat()
            if now.st_ino == self.metrics_before:
                return
            if not hasattr(self, "size"):
                self.size = now.st_size
            if now.st_size > self.size:
                self.first_step = time.monotonic() - self.began

    def processes(self, target: str) -> list[psutil.Process]:
        """Those that a strike at ``target`` hits: ranks, deepspeed, launch.py, all; none yet, perhaps."""
        if self.launcher != "deepspeed":
            return [psutil.Process(p.pid) for p in self.top if p.poll() is None]
        runner = psutil.Process(self.top[0].pid)
        if target == "deepspeed":
            return [runner]
        under = runner.children()
        launchers = [p for p in under if "deepspeed.launcher.launch" in " ".join(p.cmdline())]
        if target == "rank":
            return [p for launch in launchers for p in launch.children() if _is_rank(p)]
        return launchers if target == "launch.py" else [*launchers, runner]

    def over(self) -> bool:
        return all(p.poll() is not None for p in self.top)

    def left(self) -> list[psutil.Process]:
        """Living processes of this run: those with its folder in their command line."""
        return [p for p in psutil.process_iter() if _names(p, f"--output_dir={self.folder}")]

    def wait(self, fault: Fault | None, limit: float) -> Outcome:
        """Waits for the end, strikes on the way, and cleans up what would not end."""
        outcome = Outcome(fault=fault)
        aim = fault.aim(self) if fault else iter(())
        while not self.over():
            self.look()
            pause = 0.02
            if fault and not outcome.struck:
                with suppress(psutil.Error):
                    ready = next(aim, False)
                    pause = fault.pause if fault.close(self) else 0.02
                    if ready:
                        outcome.inside = bool(self.writing())
                        outcome.struck = True
                        fault.strike(self)
            if time.monotonic() - self.began > limit:
                outcome.hung = True
                break
            time.sleep(pause)
        deadline = time.monotonic() + (0 if outcome.hung else LEAVE)
        while left := self.left():
            if time.monotonic() > deadline:
                outcome.orphans = len(left)
                break
            time.sleep(0.2)
        self.end()
        self.look()
        outcome.statuses = [p.wait() for p in self.top]
        outcome.output = self.log.read_text(errors="replace")
        outcome.first_step = self.first_step
        resumed = RESUMING.search(outcome.output)
        outcome.resumed_at = int(resumed.group(1)) if resumed else None
        outcome.reached = last_step(self.folder)
        return outcome

    def end(self) -> None:
        """Kills what is left of this run, and nothing else: by its own folder and by its own process groups."""
        if self in LIVE:
            LIVE.remove(self)
        for process in self.left():
            with suppress(psutil.Error):
                process.kill()
        for started in self.top:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def last_step(folder: Path) -> int:
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    steps = [re.match(r'\{"step": (\d+), "split": "train"', line) for line in lines]
    return max((int(match.group(1)) for match in steps if match), default=0)


def _names(process: psutil.Process, argument: str) -> bool:
    try:
        return argument in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_rank(process: psutil.Process) -> bool:
    return any(argument.startswith("--local_rank=") for argument in process.cmdline())


def signals(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
