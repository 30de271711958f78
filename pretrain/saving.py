"""Checkpoints and releases of a run under way."""

from dataclasses import asdict

import torch

from data_pipeline.errors import KinspanError
from pretrain.checkpoints.capture import full_weights
from pretrain.release.release import write_release
from pretrain.runtime.history import STOPPED
from pretrain.runtime.stop import Stopped

from .recovery import count_skips
from .runtime import ranks
from .state import Run


def save(run: Run) -> None:
    """Writes a checkpoint. Afterwards rank 0 holds the sums of all ranks, as it does in a resumed run: the additions
    that follow then round alike in both."""
    run.watch.mark(f"the checkpoint of step {run.progress.step}", patient=True)
    run.progress.window = ranks.sum_over_ranks(run.window).tolist()
    count_skips(run)
    run.writer.save(run.engine, asdict(run.progress))
    if run.setup.rank == 0:
        run.window = torch.tensor(run.progress.window, dtype=torch.float64, device=run.window.device)
    else:
        run.window.zero_()


def stop(run: Run, saved: bool) -> None:
    """Ends the run with a checkpoint, by raising Stopped. ``saved``: the checkpoint of this step is there already

    Where this step is to be measured, the checkpoint says so, and the resumed run does it. Raises KinspanError where
    the checkpoint cannot be written.
    """
    step = run.progress.step
    if not saved:
        run.progress.due = True
        save(run)
    if failure := run.writer.finish():
        raise KinspanError(f"stopped, but without a checkpoint of step {step}: {failure}")
    reasons = [reason for reason in ranks.gather(run.request.reason) if reason]
    run.note(STOPPED, why=reasons[0])
    run.say(f"stopped at step {step}, with a checkpoint ({reasons[0]}): the same command again goes on")
    raise Stopped


def release(run: Run) -> None:
    """Writes a release of this step. One that is there already is kept if this run was resumed at this step: otherwise
    it was made of other weights."""
    step = run.progress.step
    run.watch.mark(f"the release of step {step}", patient=True)
    folder = run.setup.folder / "releases" / f"step-{step:08d}"
    weights = full_weights(run.engine)
    if run.setup.rank == 0 and not (folder.exists() and step == run.resumed_at):
        folder.parent.mkdir(exist_ok=True)
        write_release(run.setup.folder, weights, step, folder)
        run.say(f"released {folder}")
    ranks.barrier()
