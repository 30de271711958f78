"""Damage to files, and faults from within: one trial each."""

import json
import shutil
import signal
import subprocess
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
    "manifest.json",
    "state.json",
    "weights.safetensors",
    "engine/mp_rank_00_model_states.pt",
    "engine/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "engine/zero_pp_rank_1_mp_rank_00_optim_states.pt",
)
STOP_AT = Fault("TERM all", "checkpoint", number=3)


def launcher_of(arena: Arena) -> str:
    """Without DeepSpeed's launcher, which replaces the ranks' statuses by its own."""
    return "forked" if "forked" in arena.launchers else "hand"


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
        outcome = arena.start(CELL, run, launcher_of(arena), VICTIM, CHAOS_SLOW=0.05).wait(STOP_AT, LIMIT)
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
    found = checkpoints(run)
    for folder in found if both else found[:1]:
        HARMS[how](folder / name)
    if both:
        outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena)))
        refused(trial, outcome, str(run))
        trial.expect(checkpoints(run) == found, "checkpoints that were refused are gone")
    else:
        outcome = finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL))
        older = int(found[1].name[5:])
        trial.expect(outcome.resumed_at == older, f"resumed at {outcome.resumed_at}, not {older}")
    said = [line for line in outcome.output.splitlines() if "skipped a checkpoint" in line]
    names = [line for line in said if found[0].name in line and name in line]
    trial.expect(len(names) == 1, f"{found[0].name} and {name} are not named: {said}")
    arena.clear(trial, run)
    return trial


def harm_run_json(arena: Arena, how: str) -> Trial:
    """The file that says whose folder it is: refused by its name, or written anew where it is gone with all else."""
    trial = Trial("damage", f"run.json {how}")
    run = arena.room("damage")
    shutil.copytree(stopped_run(arena), run)
    HARMS[how](run / "run.json")
    outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena)))
    if outcome.statuses == [0, 0]:  # a bit in what only people read
        trial.wrong += differences(arena.reference(CELL), run)
    elif how == "gone":
        refused(trial, outcome, str(run))
    else:
        refused(trial, outcome, "run.json")
    arena.clear(trial, run)
    return trial


def harm_log(arena: Arena, how: str) -> Trial:
    """The log is no part of the run's state: it goes on, and ends with the same weights."""
    trial = Trial("damage", f"metrics.jsonl {how}")
    run = arena.room("damage")
    shutil.copytree(stopped_run(arena), run)
    HARMS[how](run / "metrics.jsonl")
    outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena)))
    if trial.expect(outcome.statuses == [0, 0], f"ended with {outcome.statuses}: {outcome.errors}"):
        wrong = differences(arena.reference(CELL), run)
        trial.wrong += [line for line in wrong if not line.startswith("the log differs")]
    arena.clear(trial, run)
    return trial


def one_nan(arena: Arena, cell: Cell = CELL, count: int = 1) -> Trial:
    """NaN on the last rank alone: skipped on all, counted, with the examples; and killed on the way, it ends alike."""
    trial = Trial("injected", f"NaN in {count} step(s), {cell}")
    at: dict[str, Any] = {"CHAOS_NAN": f"{cell.world - 1}:6:{count}", "entry": VICTIM}
    whole, run = arena.room("nan-whole"), arena.room("nan")
    run_to_end(arena, trial, arena.start(cell, whole, launcher_of(arena), **at))
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    skipped = [line for line in lines if line["split"] == "skipped"]
    size = 12
    trial.expect(
        [(s["step"], s["skipped_steps"], s["example"], s["count"]) for s in skipped]
        == [(7 + k, 1 + k, (6 + k) * size, size) for k in range(count)],
        f"the log's skipped lines are {skipped}",
    )
    fault = Fault("kill -9 all", "checkpoint", number=3)
    trial.starts.append(arena.start(cell, run, launcher_of(arena), **at).wait(fault, LIMIT))
    finish(arena, trial, cell, run, launcher_of(arena), whole, **at)
    trial.expect(bool(differences(arena.reference(cell), whole)), "it ended as if no update had been skipped")
    arena.clear(trial, run)
    return trial


def only_nan(arena: Arena) -> Trial:
    """Nothing but NaN ends the run with status 2, and the same command without it goes on."""
    trial = Trial("injected", "NaN in every step")
    run = arena.room("only-nan")
    # Up to the checkpoint of step 12, which then is not written: the one of step 8 knows of no skipped update
    at: dict[str, Any] = {"CHAOS_NAN": "1:8:1000", "entry": VICTIM, "max_skipped_steps": 4}
    refused(trial, run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena), **at)), "4 steps in a row")
    finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL))
    arena.clear(trial, run)
    return trial


def stall(arena: Arena, rank: int = 1) -> Trial:
    """A rank that never begins a step: status 70 on all, its name, the stacks of all; then it goes on."""
    trial = Trial("injected", f"rank {rank} stalls")
    run = arena.room("stall")
    at: dict[str, Any] = {"CHAOS_STALL": f"{rank}:9", "entry": VICTIM, "stall_minutes": 0.1}
    outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena), **at))
    trial.expect(set(outcome.statuses) == {WATCHDOG}, f"ended with {outcome.statuses}")
    named = [line for line in outcome.errors if f"rank {rank} (process" in line and "has stalled" in line]
    trial.expect(len(named) == CELL.world, f"rank {rank} is not named by all: {outcome.errors}")
    stacks = [run / "stacks" / f"rank-{k}.txt" for k in range(CELL.world)]
    trial.expect(all(p.exists() and "Thread" in p.read_text() for p in stacks), "stacks are missing")
    finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL))
    arena.clear(trial, run)
    return trial


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
    finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL))
    arena.clear(trial, run)
    return trial


def full_disk(arena: Arena, in_background: bool) -> Trial:
    """The disk is full at one checkpoint: training goes on, the one before stays, the next is written."""
    trial = Trial("injected", f"full disk, {'async' if in_background else 'sync'}")
    run = arena.room("full")
    at: dict[str, Any] = {"CHAOS_FULL": 8, "entry": VICTIM, "async_checkpoints": in_background, "keep_checkpoints": 20}
    outcome = finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL), **at)
    trial.expect("the checkpoint of step 8 could not be written" in outcome.output, "nothing was said")
    trial.expect("No space left" in outcome.output, "the reason was not said")
    steps = [int(p.name[5:]) for p in checkpoints(run)]
    trial.expect(sorted(steps) == [s for s in range(4, arena.steps + 1, 4) if s != 8], f"the checkpoints are {steps}")
    trial.expect(not list((run / "checkpoints").glob("*.tmp")), "half a checkpoint was left")
    arena.clear(trial, run)
    return trial


def small_disk(arena: Arena, megabytes: int, filled: bool = False) -> Trial:
    """A file system with too little room ends the run in one line; once it has more, the run goes on and ends alike.

    filled: to the last byte, after the run stopped with a checkpoint
    """
    trial = Trial("injected", f"file system of {megabytes} MB{', then full' if filled else ''}")
    run = arena.room("small")
    run.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(run)]
    if subprocess.run(mount, capture_output=True).returncode:
        trial.what = "skipped, for it needs root"
        return trial
    try:
        if filled:
            shutil.copytree(stopped_run(arena), run, dirs_exist_ok=True)
            with suppress(OSError), (run / "filler").open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena)))
        trial.expect(outcome.statuses[0] == REFUSED, f"ended with {outcome.statuses}")
        trial.expect(bool(outcome.errors), "nothing was said in one line")
        trial.expect("Traceback" not in outcome.output, "ended with a traceback")
        (run / "filler").unlink(missing_ok=True)
        subprocess.run(["mount", "-o", "remount,size=500m", str(run)], check=True)
        finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL))
        if trial.wrong:
            shutil.copytree(run, arena.room("small-copy"))
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)
    arena.clear(trial, run)
    return trial


def damaged_corpus(arena: Arena, during: bool) -> Trial:
    """A bit is flipped before the run, or, in shards not used, once it trains: refused by name; then mended."""
    trial = Trial("injected", f"damaged corpus, {'during' if during else 'before'} the run")
    run, corpus = arena.room("corpus-run"), arena.room("corpus")
    at: dict[str, Any] = {"CHAOS_BLOCK": 50, "entry": VICTIM}
    whole = arena.room("corpus-whole")
    run_to_end(arena, trial, arena.start(CELL, whole, launcher_of(arena), **at))
    shutil.copytree(arena.materials.corpus, corpus)
    shards = sorted((corpus / "shards").glob("*.arrow"))
    start = arena.start(CELL, run, launcher_of(arena), corpus=corpus, CHAOS_SLOW=0.05, **at) if during else None
    if start:
        while start.first_step is None and not start.over():
            start.look()
            time.sleep(0.005)
    used = {m.path for p in (start.top if start else ()) for m in psutil.Process(p.pid).memory_maps()}
    unused = [shard for shard in shards if str(shard) not in used]
    trial.expect(bool(unused), "every shard was in use: nothing was shown")
    for shard in unused:
        HARMS["bit-flipped"](shard)
    outcome = run_to_end(arena, trial, start or arena.start(CELL, run, launcher_of(arena), corpus=corpus, **at))
    refused(trial, outcome, "shards/", "SHA-256")
    shutil.rmtree(corpus)
    shutil.copytree(arena.materials.corpus, corpus)
    finish(arena, trial, CELL, run, launcher_of(arena), whole, corpus=corpus, **at)
    arena.clear(trial, run)
    return trial


def leaping_clock(arena: Arena) -> Trial:
    trial = Trial("injected", "the clock leaps by days")
    run = arena.room("clock")
    at: dict[str, Any] = {"CHAOS_CLOCK": 1, "entry": VICTIM, "max_hours": 2.0, "stall_minutes": 1.0}
    outcome = finish(arena, trial, CELL, run, launcher_of(arena), arena.reference(CELL), **at)
    trial.expect("stopped at" not in outcome.output, "the clock stopped it")
    arena.clear(trial, run)
    return trial


def two_at_once(arena: Arena) -> Trial:
    """The second start on a folder is refused with the name of the holder; the first is unharmed."""
    trial = Trial("injected", "two runs at once")
    run = arena.room("two")
    first = arena.start(CELL, run, launcher_of(arena), VICTIM, CHAOS_SLOW=0.5)
    while first.first_step is None and not first.over():
        first.look()
        time.sleep(0.02)
    # A process of its own kind, so that what is left of it is told from the first's by its process alone
    second = arena.start(CELL, run, "forked")
    while not second.over():
        first.look()
        time.sleep(0.02)
    refusal = Outcome(statuses=[p.wait() for p in second.top], output=second.log.read_text())
    second.end()
    refused(trial, refusal, f"in use by process {first.top[0].pid}")
    trial.expect(not first.over(), "the first had ended before the second did: nothing was shown")
    outcome = run_to_end(arena, trial, first)
    if trial.expect(outcome.statuses == [0, 0], f"the first ended with {outcome.statuses}"):
        trial.wrong += differences(arena.reference(CELL), run)
    arena.clear(trial, run)
    return trial


def the_checker_sees(arena: Arena) -> Trial:
    """A resume that loses the optimizer's state must not pass: else nothing here says anything."""
    trial = Trial("injected", "lost optimizer state is seen")
    run = arena.room("forgetful")
    shutil.copytree(stopped_run(arena), run)
    outcome = run_to_end(arena, trial, arena.start(CELL, run, launcher_of(arena), VICTIM, CHAOS_FORGET="optimizer"))
    trial.expect(outcome.statuses == [0, 0], f"ended with {outcome.statuses}")
    trial.expect(outcome.resumed_at is not None, "it was not resumed")
    trial.expect(any("weights differ" in line for line in differences(arena.reference(CELL), run)), "it was not seen")
    arena.clear(trial, run)
    return trial


Made = tuple[str, str, Callable[[Arena], Trial]]


def _damage() -> Iterator[Made]:
    for name in CHECKPOINT_FILES:
        for how in HARMS:
            yield "damage", f"{name} {how}", partial(harm, name=name, how=how)
    name = "weights.safetensors"
    yield "damage", f"{name} truncated in all", partial(harm, name=name, how="truncated", both=True)
    for how in HARMS:
        yield "damage", f"run.json {how}", partial(harm_run_json, how=how)
        yield "damage", f"metrics.jsonl {how}", partial(harm_log, how=how)


def _injected() -> Iterator[Made]:
    yield "injected", "lost optimizer state is seen", the_checker_sees
    for stage in range(4):
        cell = Cell(stage, 2, "ssp", "rtd" if stage == 1 else "mlm")
        yield "injected", f"NaN in 1 step(s), {cell}", partial(one_nan, cell=cell)
    yield "injected", f"NaN in 3 step(s), {CELL}", partial(one_nan, count=3)
    yield "injected", "NaN in every step", only_nan
    yield "injected", "rank 0 stalls", partial(stall, rank=0)
    yield "injected", "rank 1 stalls", partial(stall, rank=1)
    yield "injected", "rank 0 is frozen", partial(freeze, rank=0)
    yield "injected", "rank 1 is frozen", partial(freeze, rank=1)
    yield "injected", "full disk, sync", partial(full_disk, in_background=False)
    yield "injected", "full disk, async", partial(full_disk, in_background=True)
    yield "injected", "file system of 30 MB", partial(small_disk, megabytes=30)
    yield "injected", "file system of 1 MB", partial(small_disk, megabytes=1)
    yield "injected", "file system of 100 MB, then full", partial(small_disk, megabytes=100, filled=True)
    yield "injected", "damaged corpus, before the run", partial(damaged_corpus, during=False)
    yield "injected", "damaged corpus, during the run", partial(damaged_corpus, during=True)
    yield "injected", "the clock leaps by days", leaping_clock
    yield "injected", "two runs at once", two_at_once


PARTS: dict[str, list[Made]] = {"damage": list(_damage()), "injected": list(_injected())}


def short(arena: Arena, seed: int) -> Iterator[Trial]:
    """Of most things one, in a minute."""
    yield kills(arena, 0, seed, [CELL], 3)
    yield the_checker_sees(arena)
    yield harm(arena, CHECKPOINT_FILES[-1], "bit-flipped")
    yield full_disk(arena, in_background=True)
    yield stall(arena)
