"""Continues a run as one of another length, from where the two are still the same."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from pretrain.checkpoints.reader import find_newest, get_step, list_checkpoints, remove_later
from pretrain.engine.history import CHANGED, note
from pretrain.engine.lock import RUN
from pretrain.engine.log import cut_log
from pretrain.engine.run_folder import ADVICE, CHECKPOINTS, SUMMARY, refuse_other_version, write_record
from pretrain.engine.schedule import OPEN_ENDED, Schedule
from pretrain.release.adapter import note_copy

from .watching.wandb_board import IDS

DECAYED = "decayed"  # folder of complete runs that were continued, each a run's folder with its last checkpoint
LEFT = (CHECKPOINTS, DECAYED, "releases", "tensorboard", "lock")  # of the folder, what such a run has no copy of


def find_start(folder: Path, schedule: Schedule) -> Path | None:
    """The checkpoint that a run of an open-ended schedule goes on from where its length is another one now; None where
    it is the same.

    Raises KinspanError where no checkpoint is from before the decay, or a run under way has gone beyond a shorter
    one's.
    """
    before = int(read_object(folder / RUN, ADVICE)["total_steps"])
    if schedule.shape not in OPEN_ENDED or before == schedule.total:
        return None
    refuse_other_version(folder / RUN)
    common = min(schedule.decay_start, replace(schedule, total=before).decay_start)
    checkpoints = folder / CHECKPOINTS
    found, _ = find_newest(checkpoints, common)
    if found is None:
        raise KinspanError(
            f"--output_dir {folder} holds this run with {before} steps, and no whole checkpoint up to step {common}, "
            f"where its learning rate leaves that of {schedule.total} steps: choose another --output_dir"
        )
    step, newest = get_step(found), max(map(get_step, list_checkpoints(checkpoints)))
    if schedule.total < before and newest > common and not (folder / SUMMARY).exists():
        raise KinspanError(
            f"--output_dir {folder} holds this run under way at step {newest} of {before}: with {schedule.total} steps "
            f"it would go back to step {step}; let it finish first, or choose another --output_dir"
        )
    return found


def change_length(folder: Path, facts: dict[str, Any], schedule: Schedule) -> None:
    """Takes a run back to ``find_start``.

    The run then ends bit for bit as one of the new length from its start. What lies behind is removed, but for the last
    checkpoint of a complete run, which moves to ``decayed/``, a run's folder of its own. Called on rank 0, under the
    folder's lock. Raises KinspanError as ``find_start`` does.
    """
    found = find_start(folder, schedule)
    if found is None:
        return
    before, step = int(read_object(folder / RUN, ADVICE)["total_steps"]), get_step(found)
    checkpoints = folder / CHECKPOINTS
    last = checkpoints / f"step-{before:08d}"
    if (folder / SUMMARY).exists() and last.exists() and before > step:
        _keep_finished(folder, last)
    for place in (checkpoints, folder / "releases"):
        remove_later(place, step)
    cut_log(folder / "metrics.jsonl", step)
    (folder / IDS).unlink(missing_ok=True)  # W&B takes no other figures of steps that it has: it gets another run
    (folder / SUMMARY).unlink(missing_ok=True)
    write_record(folder, facts)
    note(folder, CHANGED, step, before=before, now=schedule.total)
    print(f"this run had {before} steps and has {schedule.total} now: it goes on from step {step}", flush=True)
    if (kept := folder / DECAYED / last.name).exists():
        print(f"the model of {before} steps is kept in {kept}", flush=True)


def _keep_finished(folder: Path, last: Path) -> None:
    kept = folder / DECAYED / last.name
    shutil.rmtree(kept, ignore_errors=True)  # of when it had this length before
    shutil.copytree(folder, kept, ignore=lambda place, names: LEFT if Path(place) == folder else ())
    note_copy(folder, kept)
    (kept / CHECKPOINTS).mkdir()
    os.replace(last, kept / CHECKPOINTS / last.name)
