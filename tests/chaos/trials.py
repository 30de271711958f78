"""Trials: runs are killed, started again, and compared with one that nothing happened to."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .faults import BY_HAND, KINDS, Fault, random_fault
from .materials import SETTINGS, Cell, Materials
from .report import differences
from .starts import Outcome, Start

LIMIT = 240.0  # seconds of one start, on a machine that does other things too
VICTIM = "tests/chaos/victim.py"
ENDED, STOPPED, WATCHDOG, REFUSED = 0, 75, 70, 2


@dataclass
class Trial:
    """A trial: every start of it, and what went wrong."""

    what: str
    name: str
    starts: list[Outcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> bool:
        if not holds:
            self.wrong.append(otherwise)
        return holds

    def count_lost(self) -> list[int]:
        """Steps that each start's end cost, as the next start that trained found out."""
        lost = []
        for number, outcome in enumerate(self.starts):
            after = [o for o in self.starts[number + 1 :] if o.first_step is not None][:1]
            lost.append(max(0, outcome.reached - (after[0].resumed_at or 0)) if after and outcome.struck else 0)
        return lost


@dataclass
class Arena:
    """Where trials happen: ``folder`` holds the materials, the references, and each trial's runs and logs."""

    folder: Path
    launchers: tuple[str, ...] = ("deepspeed", "hand")
    steps: int = SETTINGS["max_steps"]
    logs: int = 0
    starting: float = 12.0  # seconds that a start takes, as the last reference did

    @property
    def materials(self) -> Materials:
        return Materials(self.folder / "materials")

    def start(self, cell: Cell, run: Path, launcher: str, entry: str = "launch/pretrain.py", **changes: Any) -> Start:
        self.logs += 1
        variables = {k: str(changes.pop(k)) for k in list(changes) if k.isupper()}
        settings = self.materials.settings(cell, run, **{"max_steps": self.steps, **changes})
        log = self.folder / "logs" / f"{run.name}-{self.logs}.log"
        return Start(settings, cell.world, log, launcher, entry, **variables)

    def reference(self, cell: Cell) -> Path:
        """The folder of a run of this cell that nothing happened to."""
        run = self.folder / "reference" / str(cell)
        if not (run / "summary.json").exists():
            shutil.rmtree(run, ignore_errors=True)
            outcome = self.start(cell, run, self.launchers[-1]).wait(None, LIMIT * 2)
            if any(outcome.statuses):
                raise RuntimeError(f"the reference of {cell} ended with {outcome.statuses}:\n{outcome.output[-3000:]}")
            self.starting = outcome.first_step or self.starting
        return run

    def room(self, name: str) -> Path:
        run = self.folder / "runs" / name
        shutil.rmtree(run, ignore_errors=True)
        return run

    def clear(self, trial: Trial, run: Path) -> Trial:
        """Removes the run's folder if nothing was wrong, and returns the trial."""
        if not trial.wrong:
            shutil.rmtree(run, ignore_errors=True)
        return trial


def known(outcome: Outcome, fault: Fault, launcher: str) -> bool:
    """Whether these statuses are among those that a start with this fault may end with."""
    from_signals = {n for blow in (2, 9, 10, 15) for n in (-blow, 128 + blow, 256 - blow)}
    fine = {ENDED, STOPPED, WATCHDOG, *from_signals}
    if launcher == "deepspeed" and fault.at_launcher:
        fine.add(1)  # DeepSpeed's launcher that was itself asked to end
    return all(status in fine for status in outcome.statuses)


def check_end(trial: Trial, outcome: Outcome, name: str) -> None:
    trial.expect(not outcome.hung, f"{name} hung")
    trial.expect(not outcome.orphans, f"{name} left {outcome.orphans} processes")


def finish(
    arena: Arena, trial: Trial, cell: Cell, run: Path, launcher: str, reference: Path, **changes: Any
) -> Outcome:
    """Starts the run once more, to its end, which must be that of the reference."""
    outcome = arena.start(cell, run, launcher, **changes).wait(None, LIMIT)
    trial.starts.append(outcome)
    check_end(trial, outcome, "the last start")
    if trial.expect(not any(outcome.statuses), f"the last start ended with {outcome.statuses}: {outcome.errors}"):
        trial.expect((run / "summary.json").exists(), "there is no summary.json")
        trial.wrong += differences(reference, run)
    return outcome


def kills(arena: Arena, number: int, seed: int, cells: list[Cell], most: int) -> Trial:
    """One run, killed up to ``most`` times at random moments, then left to its end."""
    rng = random.Random(f"{seed}/{number}")
    cell = cells[number % len(cells)]
    reference = arena.reference(cell)
    run = arena.room(f"kills-{number}")
    trial = Trial("kills", str(cell))
    for kind in rng.sample(list(KINDS) if "deepspeed" in arena.launchers else BY_HAND, most):
        launcher = rng.choice(arena.launchers)
        if kind not in BY_HAND:
            launcher = "deepspeed"
        fault = random_fault(rng, launcher, cell.world, kind, arena.starting)
        in_background = rng.random() < 0.5
        before = len(trial.starts)
        outcome = arena.start(cell, run, launcher, async_checkpoints=in_background).wait(fault, LIMIT)
        trial.starts.append(outcome)
        name = f"start {before} ({fault.kind}, {launcher}, {'async' if in_background else 'sync'})"
        check_end(trial, outcome, name)
        trial.expect(known(outcome, fault, launcher), f"{name} ended with {outcome.statuses}: {outcome.errors}")
        asked = fault.asks and outcome.struck and outcome.first_step is not None
        if asked and fault.moment != "start" and not (run / "summary.json").exists():
            trial.expect("stopped at step" in outcome.output, f"{name} stopped without a checkpoint")
        if (run / "summary.json").exists() or trial.wrong:
            break
    if not trial.wrong:
        finish(arena, trial, cell, run, rng.choice(arena.launchers), reference)
    bound = 2 * SETTINGS["save_steps"] + SETTINGS["log_steps"]  # in the background, the one before counts
    lost = trial.count_lost()
    trial.expect(max(lost) <= bound, f"a kill cost {max(lost)} steps, more than {bound}")
    return arena.clear(trial, run)
