"""What a run leaves of its course in its output folder, for whoever looks at it from any machine.

    history.jsonl    what happened, a line each, over all starts: started, skipped, rewound, stopped, ...
    heartbeat.json   written anew every few seconds while the run is on: where rank 0 is

A run never reads them, and goes on without them where they cannot be written.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

HISTORY, HEARTBEAT = "history.jsonl", "heartbeat.json"
# The kinds of what happens
STARTED, FINISHED, STOPPED, FAILED, ENDED = "started", "finished", "stopped", "failed", "ended by the watchdog"
SKIPPED, LEAPT, REWOUND, UNSAVED, DAMAGED = "skipped", "leapt", "rewound", "not saved", "damaged checkpoint"
CHANGED = "length changed"
MOST_SECONDS = 1e11  # of the Unix clock, in the year 5138
MOST_STEPS = 1 << 53  # that a sound file can tell of
UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
ENDINGS = (FINISHED, STOPPED, FAILED, ENDED)


def note(folder: Path, kind: str, step: int | None = None, **values: Any) -> None:
    """Adds a line to the history: what happened, after how many updates, and when (seconds of the Unix clock)."""
    line = json.dumps({"time": round(time.time(), 3), "kind": kind, "step": step, **values})
    path = folder / HISTORY
    with suppress(OSError):
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            os.truncate(path, size)  # leave no half line behind, which would spoil the next one


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of the history, oldest first, without damaged ones; none where there is no file.

    Raises OSError where it cannot be read.
    """
    with suppress(FileNotFoundError):
        return [line for text in (folder / HISTORY).read_bytes().splitlines() if (line := _parse(text))]
    return []


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        step = None if line["step"] is None else int(line["step"])
        if step is not None and not 0 <= step <= MOST_STEPS:
            return None
        return {**line, "time": _read_time(line), "kind": str(line["kind"]), "step": step}
    except UNREADABLE:
        return None


def _read_time(values: dict[str, Any], name: str = "time") -> float:
    """Seconds of the Unix clock, or that something takes. Raises ValueError for what can be neither."""
    seconds = float(values[name])
    if not 0 <= seconds < MOST_SECONDS:
        raise ValueError
    return seconds


def write_heartbeat(folder: Path, values: dict[str, Any]) -> None:
    """Replaces the heartbeat with these values and the time now. It is not synced: the next one comes soon."""
    partial = folder / f"{HEARTBEAT}.tmp"
    with suppress(OSError):
        partial.write_text(json.dumps({**values, "time": round(time.time(), 3)}) + "\n", encoding="utf-8")
        partial.replace(folder / HEARTBEAT)


def read_heartbeat(folder: Path) -> dict[str, Any] | None:
    """The last heartbeat; None where there is none, or it is not whole. Raises OSError where it cannot be read."""
    try:
        found = json.loads((folder / HEARTBEAT).read_bytes())
        spans = {name: _read_time(found, name) for name in ("seconds_there", "every")}
        return {**found, "time": _read_time(found), "process": abs(int(found["process"])) % 2**31, **spans}
    except (FileNotFoundError, *UNREADABLE):
        return None


def name_system() -> str:
    """Names the running machine and its space of process numbers. Containers may share a host name, but not these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # as if each rank were on a machine of its own


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs; one that has ended, but was not yet waited for, does not."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


Line = Mapping[str, Any]  # of history.jsonl


def _describe_start(line: Line) -> str:
    ranks = f"with {line.get('ranks', '?')} rank(s), process {line.get('process', '?')} on {line.get('host', '?')}"
    return f"resumed at step {line['step']:,}, {ranks}" if line["step"] else f"began, {ranks}"


WORDS: dict[str, Callable[[Line], str]] = {
    STARTED: _describe_start,
    FINISHED: lambda line: "complete",
    STOPPED: lambda line: f"stopped with a checkpoint ({line.get('why', '')})",
    FAILED: lambda line: f"ended by an error: {line.get('why', '')}",
    ENDED: lambda line: f"ended by the watchdog: {line.get('why', '')}",
    SKIPPED: lambda line: f"an update was skipped, not being finite (examples from {line.get('example', '?')} on)",
    LEAPT: lambda line: f"the loss leapt from {line.get('before', 0.0):.3f} to {line.get('loss', 0.0):.3f}",
    REWOUND: lambda line: (
        f"went back from step {line.get('leapt_at', '?')}; batches {' to '.join(map(str, line.get('left_out', [])))} "
        "are left out"
    ),
    CHANGED: lambda line: f"has {line.get('now', '?')} steps now, not {line.get('before', '?')}",
    UNSAVED: lambda line: str(line.get("why", "a checkpoint could not be written")),
    DAMAGED: lambda line: f"skipped a checkpoint that is not whole: {line.get('why', '')}",
}


def describe_history(history: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Of each line the time (UTC), the step, and what happened; and a line where a run was killed."""
    rows, is_on = [], False
    for line in history:
        if line["kind"] == STARTED and is_on:
            rows.append(("", "", "ended without a word: killed, or its machine went down"))
        is_on = line["kind"] == STARTED or (is_on and line["kind"] not in ENDINGS)
        step = "" if line["step"] is None else f"{line['step']:,}"
        rows.append((format_clock(line["time"]), step, _describe(line)))
    return rows


def _describe(line: Line) -> str:
    try:
        return WORDS[line["kind"]](line)
    except (LookupError, TypeError, ValueError, OverflowError):  # of another version, or damaged
        return str(line["kind"])


def format_clock(seconds: float) -> str:
    """A moment of the Unix clock as date and time, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def count_kind(history: Sequence[Line], kind: str) -> int:
    return sum(line["kind"] == kind for line in history)


def estimate_speed(history: Sequence[Line], step: int, now: float) -> float | None:
    """Updates per second since the last start or rewind, validation and checkpoints included; None where
    none was made."""
    begun = [line for line in history if line["kind"] in (STARTED, REWOUND)][-1:]
    if not begun or begun[0]["step"] is None:
        return None
    steps, seconds = step - begun[0]["step"], now - begun[0]["time"]
    return steps / seconds if steps > 0 and seconds > 0 else None
