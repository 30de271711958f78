"""Changes the length of a run, which resumes where both lengths still have the same learning rate; or any settings of
``--resume_with``, from its newest checkpoint on."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, read_object
from pretrain.checkpoints.reader import find_newest, get_step, list_checkpoints
from pretrain.engine.log import WANDB_ID, cut_log
from pretrain.engine.run_folder import ADVICE, CHECKPOINTS, RUN, SUMMARY, holds_this_run, write_record
from pretrain.engine.schedule import OPEN_ENDED, Schedule

log = logging.getLogger(__name__)
DECAYED = "decayed"  # folder of complete runs that were continued, each a run's folder with its last checkpoint
NOT_COPIED = (CHECKPOINTS, DECAYED, "tensorboard", "lock")  # entries that stay behind


def check_resumption(folder: Path, facts: JsonObject, schedule: Schedule) -> None:
    """Raises KinspanError unless these settings begin a run in the folder, or resume the one there."""
    if holds_this_run(folder, facts):
        note_changes(folder, facts) if facts["changed"] else find_start(folder, schedule)
    elif facts["changed"]:
        raise KinspanError(f"--resume_with: --output_dir {folder} holds no run to resume")


def note_changes(folder: Path, facts: JsonObject) -> bool:
    """Adds to ``facts`` the history of changes by --resume_with; returns whether this start has made any.

    Raises KinspanError if the run is past its new length.
    """
    stored = read_object(folder / RUN, ADVICE)
    step = max(map(get_step, list_checkpoints(folder / CHECKPOINTS)), default=0)
    old, new = stored.get("settings", {}), facts["settings"]
    changes = {name: [old.get(name), new[name]] for name in sorted(facts["changed"]) if old.get(name) != new[name]}
    length = {name: stored.get(name) for name in ("total_steps", "warmup_steps")}
    change = {"step": step, "settings": changes, "facts": length}
    facts["history"] = stored.get("history", []) + ([change] if changes else [])
    if changes and step > facts["total_steps"]:
        raise KinspanError(f"--resume_with: the run is at step {step}, past a length of {facts['total_steps']}")
    return bool(changes)


def find_start(folder: Path, schedule: Schedule) -> Path | None:
    """Returns the checkpoint from which a run resumes with its new length; None if it has not changed.

    Raises KinspanError if there is no checkpoint before the decay, or an unfinished run is past the new one.
    """
    old_total = int(read_object(folder / RUN, ADVICE)["total_steps"])
    if schedule.shape not in OPEN_ENDED or old_total == schedule.total:
        return None
    last_common = min(schedule.decay_start, replace(schedule, total=old_total).decay_start)
    checkpoints = folder / CHECKPOINTS
    start, _ = find_newest(checkpoints, last_common)
    if start is None:
        raise KinspanError(
            f"--output_dir {folder}: this run of {old_total} steps has no valid checkpoint up to step {last_common}, "
            f"after which its learning rate differs from that of {schedule.total} steps"
        )
    step, newest = get_step(start), max(map(get_step, list_checkpoints(checkpoints)))
    if schedule.total < old_total and newest > last_common and not (folder / SUMMARY).exists():
        raise KinspanError(
            f"--output_dir {folder}: this run is at step {newest} of {old_total}, and would go back to step {step} "
            f"with {schedule.total}: let it finish first"
        )
    return start


def change_length(folder: Path, facts: JsonObject, schedule: Schedule) -> None:
    """Sets a run back to the checkpoint of ``find_start``, so that it ends bit for bit as one of the new length.

    Later checkpoints are removed; only the last one of a complete run is kept, in a run's folder in ``decayed/``. Must
    be called on rank 0, under the folder's lock. Raises KinspanError as ``find_start`` does.
    """
    start = find_start(folder, schedule)
    if start is None:
        return
    old_total, step = int(read_object(folder / RUN, ADVICE)["total_steps"]), get_step(start)
    checkpoints = folder / CHECKPOINTS
    last = checkpoints / f"step-{old_total:08d}"
    archive = folder / DECAYED / last.name
    if (folder / SUMMARY).exists() and last.exists() and old_total > step:
        shutil.rmtree(archive, ignore_errors=True)  # from an earlier time with this length
        shutil.copytree(folder, archive, ignore=lambda path, names: NOT_COPIED if Path(path) == folder else ())
        (archive / CHECKPOINTS).mkdir()
        os.replace(last, archive / CHECKPOINTS / last.name)
    for checkpoint in list_checkpoints(checkpoints):
        if get_step(checkpoint) > step:
            shutil.rmtree(checkpoint, ignore_errors=True)
    cut_log(folder / "metrics.jsonl", step)
    (folder / WANDB_ID).unlink(missing_ok=True)  # W&B gets a new run, because it cannot replace figures
    (folder / SUMMARY).unlink(missing_ok=True)
    for change in facts["history"]:
        change["step"] = min(change["step"], step)
    write_record(folder, facts)
    log.info("the run's length changes from %d to %d steps: it resumes from step %d", old_total, schedule.total, step)
    if archive.exists():
        log.info("the model of %d steps is kept in %s", old_total, archive)
