"""Continues a run as one of another length, from where the two are still the same."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, read_object
from pretrain.checkpoints.reader import find_newest, get_step, list_checkpoints, remove_later
from pretrain.engine.log import WANDB_ID, cut_log
from pretrain.engine.run_folder import ADVICE, CHECKPOINTS, RUN, SUMMARY, write_record
from pretrain.engine.schedule import OPEN_ENDED, Schedule

log = logging.getLogger(__name__)
DECAYED = "decayed"  # folder of complete runs that were continued, each a run's folder with its last checkpoint
NOT_COPIED = (CHECKPOINTS, DECAYED, "tensorboard", "lock")  # of the folder, what such a run has no copy of


def find_start(folder: Path, schedule: Schedule) -> Path | None:
    """Returns the checkpoint from which a run of an open-ended schedule goes on with a changed length; None if it is
    unchanged.

    Raises KinspanError where no checkpoint is from before the decay, or a run under way has gone beyond a shorter
    one's.
    """
    before = int(read_object(folder / RUN, ADVICE)["total_steps"])
    if schedule.shape not in OPEN_ENDED or before == schedule.total:
        return None
    common = min(schedule.decay_start, replace(schedule, total=before).decay_start)
    checkpoints = folder / CHECKPOINTS
    start, _ = find_newest(checkpoints, common)
    if start is None:
        raise KinspanError(
            f"--output_dir {folder}: this run of {before} steps has no whole checkpoint up to step {common}, where its "
            f"learning rate leaves that of {schedule.total} steps"
        )
    step, newest = get_step(start), max(map(get_step, list_checkpoints(checkpoints)))
    if schedule.total < before and newest > common and not (folder / SUMMARY).exists():
        raise KinspanError(
            f"--output_dir {folder}: this run is at step {newest} of {before}, and would go back to step {step} with "
            f"{schedule.total}: let it finish first"
        )
    return start


def change_length(folder: Path, facts: JsonObject, schedule: Schedule) -> None:
    """Takes a run back to ``find_start``.

    The run then ends bit for bit as one of the new length from its start. What lies behind is removed, but for the last
    checkpoint of a complete run, which moves to ``decayed/``, a run's folder of its own. Called on rank 0, under the
    folder's lock. Raises KinspanError as ``find_start`` does.
    """
    start = find_start(folder, schedule)
    if start is None:
        return
    before, step = int(read_object(folder / RUN, ADVICE)["total_steps"]), get_step(start)
    checkpoints = folder / CHECKPOINTS
    last = checkpoints / f"step-{before:08d}"
    if (folder / SUMMARY).exists() and last.exists() and before > step:
        _keep_finished(folder, last)
    remove_later(checkpoints, step)
    cut_log(folder / "metrics.jsonl", step)
    (folder / WANDB_ID).unlink(missing_ok=True)  # W&B gets another run: it keeps the figures of steps that it has
    (folder / SUMMARY).unlink(missing_ok=True)
    write_record(folder, facts)
    log.info("this run had %d steps and has %d now: it goes on from step %d", before, schedule.total, step)
    if (kept := folder / DECAYED / last.name).exists():
        log.info("the model of %d steps is kept in %s", before, kept)


def _keep_finished(folder: Path, last: Path) -> None:
    kept = folder / DECAYED / last.name
    shutil.rmtree(kept, ignore_errors=True)  # of when it had this length before
    shutil.copytree(folder, kept, ignore=lambda place, names: NOT_COPIED if Path(place) == folder else ())
    (kept / CHECKPOINTS).mkdir()
    os.replace(last, kept / CHECKPOINTS / last.name)
