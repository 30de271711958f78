"""What happened to a run, in words: its history as people read it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pretrain.runtime.history import (
    CHANGED,
    DAMAGED,
    ENDED,
    ENDINGS,
    FAILED,
    FINISHED,
    LEAPT,
    REWOUND,
    SKIPPED,
    STARTED,
    STOPPED,
    UNSAVED,
)

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
    """Of each line the time (UTC), the step, and what happened.

    A start after one that has no end in the history is preceded by a line that says so: that run was killed.
    """
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


def count_starts(history: Sequence[Line]) -> int:
    return sum(line["kind"] == STARTED for line in history)


def estimate_speed(history: Sequence[Line], step: int, now: float) -> float | None:
    """Updates per second since the last start or rewind, validation and checkpoints included; None where none was made.

    step: where the run stood at the time ``now``, in seconds of the Unix clock
    """
    begun = [line for line in history if line["kind"] in (STARTED, REWOUND)][-1:]
    if not begun or begun[0]["step"] is None:
        return None
    steps, seconds = step - begun[0]["step"], now - begun[0]["time"]
    return steps / seconds if steps > 0 and seconds > 0 else None
