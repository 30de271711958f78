"""Reads the status of a run from its log, checkpoints and lock alone, without torch."""

import fcntl
import time
from contextlib import suppress
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, read_object
from pretrain.engine.log import find_ends, find_warnings, format_time, read_metrics

COMPLETE, RUNNING, STOPPED = "complete", "running", "not running"
EXIT_STATUS = {COMPLETE: 0, RUNNING: 3, STOPPED: 75}
SHOWN = ("loss", "pair_loss", "pair_auc", "pair_mrr", "mlm_loss", "rtd_loss")  # figures of the last validation


def read_status(folder: Path) -> JsonObject:
    """Returns the status of the run in the folder, as ``kinspan show run --json`` prints it."""
    if not (folder / "run.json").is_file():
        loading = ": it is still loading" if is_locked(folder) else ""
        raise KinspanError(f"{folder}: there is no run of kinspan pretrain (no run.json){loading}")
    facts = read_object(folder / "run.json", "delete the folder")
    try:
        return _make_status(folder, facts)
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise KinspanError(f"{folder} holds no run of kinspan pretrain, or its log is damaged") from error


def _make_status(folder: Path, facts: JsonObject) -> JsonObject:
    total, ends = int(facts["total_steps"]), find_ends(read_metrics(folder))
    last, validated = ends.get("train", [{}])[-1], ends.get("validation", [])
    tokens, speed = int(last.get("tokens", 0)), float(last.get("tokens_per_second", 0))
    checkpoint = find_checkpoint(folder)
    state = RUNNING if is_locked(folder) else COMPLETE if (folder / "summary.json").is_file() else STOPPED
    resumed = checkpoint[0] if checkpoint else 0
    step = resumed if state == STOPPED else max((line["step"] for _, line in ends.values()), default=0)
    validations = {"first_validation": validated[:1], "last_validation": validated[1:]}
    validation = next(iter(validated[1:]), {})
    return {
        "folder": str(folder),
        "title": ", ".join([facts["model"]["name"], *(part["name"] for part in facts["objectives"])]),
        "state": state,
        "step": step,
        "total_steps": total,
        "tokens": tokens,
        "tokens_per_second": speed,
        "seconds_left": (total - step) * tokens / last["step"] / speed if tokens and speed else None,
        "checkpoint": checkpoint[0] if checkpoint else None,
        "checkpoint_age": round(time.time() - checkpoint[1], 1) if checkpoint else None,
        "skipped_steps": max((int(line.get("skipped_steps", 0)) for _, line in ends.values()), default=0),
        "warnings": find_warnings(facts | validations),
        "validation": {name: float(validation[name]) for name in SHOWN if name in validation},
    }


def is_locked(folder: Path) -> bool:
    """Returns whether a live process holds the folder's lock; across machines only if the storage supports locks."""
    try:
        with (folder / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or the storage has no locks
        return False
    return False


def find_checkpoint(folder: Path) -> tuple[int, float] | None:
    """Returns step and modification time of the newest checkpoint that has a manifest, without reading its files."""
    checkpoints = []
    for manifest in (folder / "checkpoints").glob("step-*/manifest.json"):
        with suppress(OSError, ValueError):  # it has just been removed, or its name has no step
            checkpoints.append((int(manifest.parent.name.removeprefix("step-")), manifest.stat().st_mtime))
    return max(checkpoints, default=None)


def format_status(status: JsonObject) -> str:
    """Formats the status as lines of text."""
    step, total, age, left = (status[name] for name in ("step", "total_steps", "checkpoint_age", "seconds_left"))
    rows = {
        "state": status["state"],
        "progress": f"step {step:,} of {total:,} ({100 * step / max(total, 1):.0f}%)",
        "tokens": f"{status['tokens']:,}, {status['tokens_per_second']:,.0f} per second",
        "time left": "not known" if left is None else format_time(left),
        "checkpoint": "none yet" if age is None else f"step {status['checkpoint']:,}, {format_time(age)} old",
        "skipped": f"{status['skipped_steps']:,} update(s) that were not finite",
        "validation": "  ".join(f"{name} {value:.4f}" for name, value in status["validation"].items()) or "none yet",
    }
    rows |= {"warning": "; ".join(status["warnings"])} if status["warnings"] else {}
    lines = [f"{status['folder']}: {status['title']}", *(f"  {name:<11}{value}" for name, value in rows.items())]
    return "\n".join(lines)
