"""Where a run stands, by the files of its output folder alone: on any machine that sees them, and without torch."""

import json
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from pretrain.engine.history import (
    ENDED,
    ENDINGS,
    FAILED,
    FINISHED,
    MOST_STEPS,
    REWOUND,
    STARTED,
    STOPPED,
    UNREADABLE,
    count_kind,
    describe_history,
    estimate_speed,
    is_alive,
    name_system,
    read_heartbeat,
    read_history,
)
from pretrain.engine.log import complete_lines, format_time

COMPLETE, RUNNING, STARTING, STOPPED_STATE = "complete", "running", "starting", "stopped"
FAILED_STATE, DIED, UNBEGUN = "ended by an error", "died", "not begun"
EXIT_STATUS = {COMPLETE: 0, RUNNING: 3, STARTING: 3, STOPPED_STATE: 75, FAILED_STATE: 2, DIED: 70, UNBEGUN: 2}
SILENCE = 60.0  # seconds without a heartbeat after which a run on another machine counts as dead; see watch.py
LOADING = 600.0  # seconds that a run may take from locking its folder to its first heartbeat, on another machine
SHOWN = ("loss", "pair_loss", "pair_auc", "pair_mrr", "mlm_loss", "rtd_loss")  # of the last validation
BAR = 30  # characters
EVENTS = 5  # of the history that are shown

UNSHOWN = ("title", "checkpoint", "place", "history")  # of a Status, in JSON


@dataclass(frozen=True)
class Status:
    """A run as its folder shows it. Times are in seconds; what is not known is None.

    why:         what the state rests on, as a clause
    step:        of the last line of the log that is there
    steps_per_second: since the last start, validation and checkpoints included
    checkpoint:  step and age of the newest one
    place:       where rank 0 said that it is, for how long it had been there, and how long ago it said so
    validation:  the figures of the last one
    """

    folder: Path
    title: str
    state: str
    why: str
    step: int
    total_steps: int
    tokens: int
    starts: int
    rewinds: int
    skipped_steps: int
    steps_per_second: float | None
    tokens_per_second: float | None
    checkpoint: tuple[int, float] | None
    place: tuple[str, float, float] | None
    validation: dict[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def seconds_left(self) -> float | None:
        """The time that is left at this speed."""
        return (self.total_steps - self.step) / self.steps_per_second if self.steps_per_second else None


def read_status(folder: Path) -> Status:
    """Where the run in the folder stands now. Raises KinspanError where there is no run of kinspan pretrain in it."""
    if not (folder / "run.json").is_file():
        if holder := _find_new_holder(folder / "lock", None, time.time()):
            raise KinspanError(f"{folder}: {holder}; there is nothing to show yet")
        raise KinspanError(
            f"{folder}: there is no run (no run.json): give the --output_dir of kinspan pretrain, or wait, if it "
            "has just begun"
        )
    facts = read_object(folder / "run.json", "status has nothing to read without it")
    try:
        total, title = int(facts["total_steps"]), f"{facts['model']['name']}, {facts['settings']['objective']}"
        if not 0 < total <= MOST_STEPS:
            raise ValueError
    except UNREADABLE as error:
        raise KinspanError(f"{folder}: this is not a run of kinspan pretrain (see its run.json)") from error
    try:
        return _read(folder, title, total, time.time())
    except OSError as error:
        raise KinspanError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def _read(folder: Path, title: str, total: int, now: float) -> Status:
    history, beat = read_history(folder), read_heartbeat(folder)
    lines = [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
    of = {split: [x for x in lines if x["split"] == split] for split in ("train", "validation", "skipped")}
    step = max((line["step"] for line in lines), default=0)
    last = _numbers(of["train"][-1]) if of["train"] else {}
    state, why = find_state(folder, history, beat, step, total, now)
    place = None
    if beat and state == RUNNING:
        place = str(beat.get("place", "?")), beat["seconds_there"], max(now - beat["time"], 0.0)
    logged_at = (folder / "metrics.jsonl").stat().st_mtime if lines else now
    return Status(
        folder=folder,
        title=title,
        state=state,
        why=why,
        step=step,
        total_steps=total,
        tokens=int(last.get("tokens", 0)),
        starts=count_kind(history, STARTED),
        rewinds=count_kind(history, REWOUND),
        skipped_steps=int(max((_numbers(line).get("skipped_steps", 0) for line in lines), default=0)),
        steps_per_second=estimate_speed(history, step, logged_at),
        tokens_per_second=last.get("tokens_per_second"),
        checkpoint=find_checkpoint(folder / "checkpoints", now),
        place=place,
        validation=_numbers(of["validation"][-1]) if of["validation"] else {},
        history=history,
    )


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of the log that are finite numbers, and no whole ones that no float can hold."""
    return {name: x for name, x in line.items() if isinstance(x, int | float) and abs(x) <= sys.float_info.max}


def find_state(
    folder: Path,
    history: Sequence[Mapping[str, Any]],
    beat: Mapping[str, Any] | None,
    step: int,
    total: int,
    now: float,
) -> tuple[str, str]:
    """The state, and what it rests on. ``step``, ``total``: where the log stands, and the last step"""
    last = next((line for line in reversed(history) if line["kind"] in (STARTED, *ENDINGS)), None)
    is_on, sign = _shows_life(beat, now) if beat else (False, "there is no heartbeat")
    if is_on and beat:
        started: Mapping[str, Any] = next((line for line in reversed(history) if line["kind"] == STARTED), {})
        is_its = started.get("process") == beat["process"] and started.get("host") == beat.get("host")
        if last is None or last["kind"] == STARTED or not is_its or beat["time"] > last["time"] + 2 * beat["every"]:
            return (RUNNING if is_its and last and last["kind"] == STARTED else STARTING), sign
    is_finished = step >= total or (last is not None and last["kind"] == FINISHED)  # a full disk costs the log alone
    if (folder / "summary.json").is_file() and is_finished:
        return COMPLETE, "summary.json is there"
    if holder := _find_new_holder(folder / "lock", beat, now):
        return STARTING, holder
    if last is None and step:
        return DIED, "it has a log and no history: an earlier version of kinspan trained it"
    if last is None:
        return UNBEGUN, f"no step was trained, and {sign}"
    if last["kind"] == STOPPED:
        return STOPPED_STATE, f"{last.get('why', 'on request')}; the same command again goes on"
    if last["kind"] == FAILED:
        return FAILED_STATE, str(last.get("why", ""))
    if last["kind"] == ENDED:
        return DIED, str(last.get("why", ""))
    if last["kind"] == FINISHED:
        return DIED, "it was complete once, and summary.json is gone; the same command again writes it"
    return DIED, f"{sign}; the same command again goes on"


def _shows_life(beat: Mapping[str, Any], now: float) -> tuple[bool, str]:
    """Whether a heartbeat shows that the run is on, and why. On the machine of rank 0 its process tells; elsewhere,
    the age of the heartbeat, by clocks that are taken to agree."""
    who, age = f"process {beat['process']} on {beat.get('host', '?')}", max(now - beat["time"], 0.0)
    if beat.get("system") == name_system():
        alive = is_alive(beat["process"]) and _began_before(beat["process"], beat["time"])
        return alive, f"{who} {'is alive' if alive else 'is gone'}"
    return age <= SILENCE, f"the last heartbeat of {who} is {age:.0f} s old"


def _began_before(process: int, moment: float) -> bool:
    """Whether a process is older than a heartbeat that names it: numbers are given again."""
    with suppress(psutil.Error):
        return psutil.Process(process).create_time() <= moment + 1
    return False


def _find_new_holder(lock: Path, beat: Mapping[str, Any] | None, now: float) -> str | None:
    """Who has locked the folder and gives no heartbeat yet, in words; None where nobody seems to."""
    with suppress(OSError):
        found, locked_at = re.match(r"process (\d+) on (\S+)", lock.read_text(errors="replace")), lock.stat().st_mtime
        if found and not (beat and beat["time"] >= locked_at):
            process, host = int(found[1]), found[2]
            alive = is_alive(process) and _began_before(process, locked_at)
            if alive if host == socket.gethostname() else now - locked_at < LOADING:
                return f"process {process} on {host} has locked the folder and is loading"
    return None


def find_checkpoint(folder: Path, now: float) -> tuple[int, float] | None:
    """Step and age of the newest checkpoint that has a manifest; its files are not read. None where there is none."""
    found = []
    for manifest in folder.glob("step-*/manifest.json"):
        number = manifest.parent.name.removeprefix("step-")
        if number.isdecimal():
            with suppress(OSError):  # it has just been removed
                found.append((int(number), max(now - manifest.stat().st_mtime, 0.0)))
    return max(found, default=None)


def format_status(status: Status) -> str:
    """The status as lines, the state first."""
    done = status.step / status.total_steps if status.total_steps else 0.0
    bar = "#" * round(BAR * done)
    speed = "no step logged since the last start"
    if status.steps_per_second is not None:
        speed = f"{status.steps_per_second:.3g} steps/s since the last start, all included"
    if status.tokens_per_second:
        speed += f"; {status.tokens_per_second:,.0f} tokens/s in the last line of the log"
    rows = [
        ("state", f"{status.state}: {status.why}"),
        ("progress", f"[{bar:-<{BAR}}] step {status.step:,} of {status.total_steps:,} ({100 * done:.0f}%)"),
        ("tokens", f"{status.tokens:,}"),
        ("speed", speed),
    ]
    if status.state != COMPLETE:
        left = "not known yet" if status.seconds_left is None else format_time(status.seconds_left)
        stands = status.seconds_left is not None and status.state != RUNNING
        rows.append(("time left", f"{left} at that speed, once it goes on" if stands else left))
    if status.place:
        place, seconds, age = status.place
        rows.append(("rank 0", f"{place}, for {format_time(seconds)}; said {format_time(age)} ago"))
    checkpoint = "none yet"
    if status.checkpoint:
        checkpoint = f"step {status.checkpoint[0]:,}, {format_time(status.checkpoint[1])} old"
    rows += [
        ("checkpoint", checkpoint),
        ("skipped", f"{status.skipped_steps:,} update(s) that were not finite"),
        ("starts", f"{status.starts} ({max(status.starts - 1, 0)} restart(s)), {status.rewinds} rewind(s)"),
    ]
    if status.validation:
        known = [f"{name} {status.validation[name]:.4f}" for name in SHOWN if name in status.validation]
        rows.append(("validation", "  ".join(known)))
    lines = [f"{status.folder}: {status.title}", *(f"  {name:<11}{text}" for name, text in rows)]
    if status.history:
        lines.append("  lately (UTC)")
        for clock, step, text in describe_history(status.history)[-EVENTS:]:
            lines.append("    " + " ".join(filter(None, [clock, f"step {step}:" if step else "", text])))
    return "\n".join(lines)


def as_values(status: Status) -> dict[str, Any]:
    """The status as JSON can hold it."""
    values = {name: value for name, value in vars(status).items() if name not in UNSHOWN}
    step, age = status.checkpoint or (None, None)
    return {
        **values,
        "folder": str(status.folder),
        "seconds_left": status.seconds_left,
        "checkpoint_step": step,
        "checkpoint_age": None if age is None else round(age, 1),
    }
