"""The status of a run as lines for the terminal, and as values for programs."""

from typing import Any

from pretrain.runtime.log import format_time

from .happenings import describe_history
from .status import COMPLETE, RUNNING, Status

SHOWN = ("loss", "pair_loss", "pair_auc", "pair_mrr", "mlm_loss", "rtd_loss")  # of the last validation
BAR = 30  # characters
EVENTS = 5  # of the history that are shown


def format_status(status: Status) -> str:
    """The status as lines, the state first."""
    done = status.step / status.total_steps if status.total_steps else 0.0
    bar = "#" * round(BAR * done)
    rows = [
        ("state", f"{status.state}: {status.why}"),
        ("progress", f"[{bar:-<{BAR}}] step {status.step:,} of {status.total_steps:,} ({100 * done:.0f}%)"),
        ("tokens", f"{status.tokens:,}"),
        ("speed", _describe_speed(status)),
    ]
    if status.state != COMPLETE:
        left = status.seconds_left
        rows.append(("time left", "not known yet" if left is None else _describe_left(status, left)))
    if status.place:
        place, seconds, age = status.place
        rows.append(("rank 0", f"{place}, for {format_time(seconds)}; said {format_time(age)} ago"))
    rows += [
        ("checkpoint", _describe_checkpoint(status)),
        ("skipped", f"{status.skipped:,} update(s) that were not finite"),
        ("starts", f"{status.starts} ({max(status.starts - 1, 0)} restart(s)), {status.rewinds} rewind(s)"),
    ]
    if status.validation:
        known = [f"{name} {status.validation[name]:.4f}" for name in SHOWN if name in status.validation]
        rows.append(("validation", "  ".join(known)))
    lines = [f"{status.folder}: {status.title}", *(f"  {name:<11}{text}" for name, text in rows)]
    if status.history:
        lines.append("  lately (UTC)")
        lines += [f"    {' '.join(filter(None, row))}" for row in _show_lately(status)]
    return "\n".join(lines)


def _show_lately(status: Status) -> list[tuple[str, str, str]]:
    rows = describe_history(status.history)[-EVENTS:]
    return [(clock, f"step {step}:" if step else "", text) for clock, step, text in rows]


def _describe_speed(status: Status) -> str:
    steps = "no step logged since the last start"
    if status.speed is not None:
        steps = f"{status.speed:.3g} steps/s since the last start, all included"
    tokens = status.tokens_per_second
    return steps + (f"; {tokens:,.0f} tokens/s in the last line of the log" if tokens else "")


def _describe_left(status: Status, left: float) -> str:
    return format_time(left) + ("" if status.state == RUNNING else " at that speed, once it goes on")


def _describe_checkpoint(status: Status) -> str:
    if status.checkpoint is None:
        return "none yet"
    step, age = status.checkpoint
    return f"step {step:,}, {format_time(age)} old"


def as_values(status: Status) -> dict[str, Any]:
    """The status as JSON can hold it."""
    return {
        "folder": str(status.folder),
        "state": status.state,
        "why": status.why,
        "step": status.step,
        "total_steps": status.total_steps,
        "tokens": status.tokens,
        "steps_per_second": status.speed,
        "tokens_per_second": status.tokens_per_second,
        "seconds_left": status.seconds_left,
        "checkpoint_step": status.checkpoint and status.checkpoint[0],
        "checkpoint_age": status.checkpoint and round(status.checkpoint[1], 1),
        "starts": status.starts,
        "rewinds": status.rewinds,
        "skipped_steps": status.skipped,
        "validation": status.validation,
    }
