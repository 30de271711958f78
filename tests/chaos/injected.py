"""Damage to files, and faults from within: one trial each."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from .faults import HARMS, Fault
from .materials import Cell
from .report import differences
from .starts import Outcome, Start
from .trials import LIMIT, REFUSED, STOPPED, VICTIM, WATCHDOG, Arena, Trial, check_end, finish, kills

CELL = Cell(2, 2, "ssp", "mlm")
CHECKPOINT_FILES = (
    *("manifest.json", "state.json", "weights.safetensors", "engine/mp_rank_00_model_states.pt"),
    *(f"engine/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
)
STOP_AT = Fault("TERM all", "checkpoint", number=3)


def run_to_end(arena: Arena, trial: Trial, start: Start, limit: float = LIMIT) -> Outcome:
    outcome = start.wait(None, limit)
    trial.starts.append(outcome)
    check_end(trial, outcome, f"start {len(trial.starts) - 1}")
    return outcome


def refused(trial: Trial, outcome: Outcome, *words: str) -> None:
    """Rank 0's status is 2, and one line says why, with these words."""
    trial.expect(outcome.statuses[0] == REFUSED, f"not refused: statuses {outcome.statuses}, {outcome.errors}")
    lines = [line for line in outcome.errors if line.startswith("error: ")]
    trial.expect(len(lines) == 1 and all(word in lines[0] for word in words), f"{words} are not in one line: {lines}")
    trial.expect("Traceback" not in outcome.output, "refused with a traceback")


def stopped_run(arena: Arena) -> Path:
    """A run of CELL that was asked to stop, with two checkpoints or more: to be copied and harmed."""
    run = arena.folder / "stopped" / str(CELL)
    if not (run / "metrics.jsonl").exists() or (run / "summary.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        outcome = arena.start(CELL, run, "hand", VICTIM, CHAOS_SLOW=0.05).wait(STOP_AT, LIMIT)
        if set(outcome.statuses) != {STOPPED}:
            raise RuntimeError(f"the run to be harmed ended with {outcome.statuses}:\n{outcome.output[-3000:]}")
    return run


def checkpoints(run: Path) -> list[Path]:
    """Newest first."""
    return sorted((run / "checkpoints").glob("step-????????"), reverse=True)


def harm(arena: Arena, name: str, how: str, both: bool = False) -> Trial:
    """A file of the newest checkpoint, or of both, is harmed: it is named, and an older one resumed from, if any."""
    trial = Trial("damage", f"{name} {how}{' in all' if both else ''}")
    run = arena.room("damage")
    shutil.copytree(stopped_run(arena), run)
    saved = checkpoints(run)
    for folder in saved if both else saved[:1]:
        HARMS[how](folder / name)
    if both:
        outcome = run_to_end(arena, trial, arena.start(CELL, run, "hand"))
        refused(trial, outcome, str(run))
        trial.expect(checkpoints(run) == saved, "checkpoints that were refused are gone")
    else:
        outcome = finish(arena, trial, CELL, run, "hand", arena.reference(CELL))
        older = int(saved[1].name[5:])
        trial.expect(outcome.resumed_at == older, f"resumed at {outcome.resumed_at}, not {older}")
    said = [line for line in outcome.output.splitlines() if "skipped" in line]
    names = [line for line in said if saved[0].name in line and name in line]
    trial.expect(len(names) == 1, f"{saved[0].name} and {name} are not named: {said}")
    return arena.clear(trial, run)


def add_nan(arena: Arena, cell: Cell = CELL, count: int = 1) -> Trial:
    """NaN on the last rank alone: skipped on all, counted, with the examples; and killed on the way, it ends alike."""
    trial = Trial("injected", f"NaN in {count} step(s), {cell}")
    at: dict[str, Any] = {"CHAOS_NAN": f"{cell.world - 1}:6:{count}", "entry": VICTIM}
    whole, run = arena.room("nan-whole"), arena.room("nan")
    run_to_end(arena, trial, arena.start(cell, whole, "hand", **at))
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    skipped = [line for line in lines if line["split"] == "skipped"]
    size = 12
    trial.expect(
        [(s["step"], s["skipped_steps"], s["example"], s["count"]) for s in skipped]
        == [(7 + k, 1 + k, (6 + k) * size, size) for k in range(count)],
        f"the log's skipped lines are {skipped}",
    )
    fault = Fault("kill -9 all", "checkpoint", number=3)
    trial.starts.append(arena.start(cell, run, "hand", **at).wait(fault, LIMIT))
    finish(arena, trial, cell, run, "hand", whole, **at)
    trial.expect(bool(differences(arena.reference(cell), whole)), "it ended as if no update had been skipped")
    return arena.clear(trial, run)


def stall(arena: Arena, rank: int = 1) -> Trial:
    """A rank that never begins a step: status 70 on all, its name, the stacks of all; then it goes on."""
    trial = Trial("injected", f"rank {rank} stalls")
    run = arena.room("stall")
    at: dict[str, Any] = {"CHAOS_STALL": f"{rank}:9", "entry": VICTIM, "stall_minutes": 0.1}
    outcome = run_to_end(arena, trial, arena.start(CELL, run, "hand", **at))
    trial.expect(set(outcome.statuses) == {WATCHDOG}, f"ended with {outcome.statuses}")
    named = [line for line in outcome.errors if f"rank {rank} (process" in line and "has stalled" in line]
    trial.expect(len(named) == CELL.world, f"rank {rank} is not named by all: {outcome.errors}")
    stacks = [run / "stacks" / f"rank-{k}.txt" for k in range(CELL.world)]
    trial.expect(all(p.exists() and "Thread" in p.read_text() for p in stacks), "stacks are missing")
    finish(arena, trial, CELL, run, "hand", arena.reference(CELL))
    return arena.clear(trial, run)


def freeze(arena: Arena, rank: int) -> Trial:
    """A rank is stopped as by a debugger (SIGSTOP): its silence ends the run."""
    trial = Trial("injected", f"rank {rank} is frozen")
    run = arena.room("freeze")
    start = arena.start(CELL, run, "hand", VICTIM, CHAOS_SLOW=0.1, stall_minutes=10)
    while start.first_step is None and not start.over():
        start.look()
        time.sleep(0.02)
    frozen = psutil.Process(start.top[rank].pid)
    frozen.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    while any(p.poll() is None for k, p in enumerate(start.top) if k != rank) and time.monotonic() - began < 120:
        time.sleep(0.2)
    trial.expect(start.top[1 - rank].poll() == WATCHDOG, f"the other ended with {start.top[1 - rank].poll()}")
    with suppress(psutil.Error):
        frozen.send_signal(signal.SIGCONT)
    outcome = run_to_end(arena, trial, start)
    named = [line for line in outcome.errors if f"rank {rank} (process" in line and "no sign of life" in line]
    trial.expect(bool(named), f"rank {rank} is not named: {outcome.errors}")
    finish(arena, trial, CELL, run, "hand", arena.reference(CELL))
    return arena.clear(trial, run)


def full_disk(arena: Arena, in_background: bool) -> Trial:
    """The disk is full at one checkpoint: training goes on, the one before stays, the next is written."""
    trial = Trial("injected", f"full disk, {'async' if in_background else 'sync'}")
    run = arena.room("full")
    at: dict[str, Any] = {"CHAOS_FULL": 8, "entry": VICTIM, "async_checkpoints": in_background, "keep_checkpoints": 20}
    outcome = finish(arena, trial, CELL, run, "hand", arena.reference(CELL), **at)
    trial.expect("the checkpoint of step 8 could not be written" in outcome.output, "nothing was said")
    trial.expect("No space left" in outcome.output, "the reason was not said")
    steps = [int(p.name[5:]) for p in checkpoints(run)]
    trial.expect(sorted(steps) == [s for s in range(4, arena.steps + 1, 4) if s != 8], f"the checkpoints are {steps}")
    trial.expect(not list((run / "checkpoints").glob("*.tmp")), "half a checkpoint was left")
    return arena.clear(trial, run)


def the_checker_sees(arena: Arena) -> Trial:
    """A resume that loses the optimizer's state must not pass: else nothing here says anything."""
    trial = Trial("injected", "lost optimizer state is seen")
    run = arena.room("forgetful")
    shutil.copytree(stopped_run(arena), run)
    outcome = run_to_end(arena, trial, arena.start(CELL, run, "hand", VICTIM, CHAOS_FORGET="optimizer"))
    trial.expect(outcome.statuses == [0, 0], f"ended with {outcome.statuses}")
    trial.expect(outcome.resumed_at is not None, "it was not resumed")
    trial.expect(any("weights differ" in line for line in differences(arena.reference(CELL), run)), "it was not seen")
    return arena.clear(trial, run)


WEIGHTS = "weights.safetensors"
CELLS = [Cell(stage, 2, "ssp", "rtd" if stage == 1 else "mlm") for stage in range(4)]
PARTS: dict[str, list[Callable[[Arena], Trial]]] = {
    "damage": [
        *(partial(harm, name=name, how=how) for name in CHECKPOINT_FILES for how in HARMS),
        partial(harm, name=WEIGHTS, how="truncated", both=True),
    ],
    "injected": [
        the_checker_sees,
        *(partial(add_nan, cell=cell) for cell in CELLS),
        partial(add_nan, count=3),
        *(partial(act, rank=rank) for act in (stall, freeze) for rank in (0, 1)),
        *(partial(full_disk, in_background=in_background) for in_background in (False, True)),
    ],
}


def short(arena: Arena, seed: int) -> Iterator[Trial]:
    """Tries a few of each part, in a minute."""
    yield kills(arena, 0, seed, [CELL], 3)
    yield the_checker_sees(arena)
    yield harm(arena, CHECKPOINT_FILES[-1], "bit-flipped")
    yield full_disk(arena, in_background=True)
    yield stall(arena)
