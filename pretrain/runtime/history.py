"""What a run leaves of its course in its output folder, for whoever looks at it from any machine.

    history.jsonl    what happened, a line each, over all starts: started, skipped, rewound, stopped, ...
    heartbeat.json   written anew every few seconds while the run is on: where rank 0 is

Neither changes what a run computes, and a run never reads them. Where they cannot be written it goes on without them.
"""

import json
import os
import socket
import time
from contextlib import suppress
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
