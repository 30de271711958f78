"""A pre-training run, from settings to summary.json: the training loop, and what surrounds it."""

import atexit
import math
import os
import socket
import time
from contextlib import closing, nullcontext, suppress
from functools import cache, partial
from typing import Any

import torch.distributed as dist
import yaml

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.files import read_object, write_atomically
from pretrain.checkpoints.reader import find_resumable, get_step
from pretrain.runtime.deepspeed_compat import release_engine
from pretrain.runtime.engine import set_learning_rate, start_distributed
from pretrain.runtime.history import DAMAGED, FAILED, FINISHED, STARTED, note
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.out_of_memory import describe_out_of_memory, is_out_of_memory, return_freed_memory
from pretrain.runtime.run_folder import CHECKPOINTS, open_folder
from pretrain.runtime.stop import Stopped, StopRequest, listen_for_stop
from pretrain.runtime.watch import SETTING_UP, Watch, watch_ranks
from pretrain.runtime.world import read_launcher_variables

from .config import PretrainConfig, as_dict
from .finished import SUMMARY
from .measure import measure
from .metrics import compute_figures
from .planning.checks import check
from .recovery import count_skips, look_for_spike
from .runtime import ranks
from .saving import release, save, stop
from .setup import Setup, set_up
from .state import Probe, Run, close_run, fetch_next, open_run, start_run
from .step import StepResult, train_step, try_largest
from .summary import describe_run, write_summary


def pretrain(config: PretrainConfig, probe: Probe | None = None) -> dict[str, Any]:
    """Begins or resumes the run that ``config`` describes, and returns its summary; every rank but rank 0 returns {}.

    probe: measures the model every ``config.probe_steps``, on rank 0; finetune.training.probe.make_probe makes it

    All ranks call it. Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a
    signal or ``max_hours`` ended the run after a checkpoint.
    """
    check(config)
    folder = open_folder(config.output_dir)
    try:
        start_distributed()
    except KinspanError:
        with suppress(OSError):  # where it holds something
            folder.rmdir()
        raise
    try:
        with lock_folder(folder), listen_for_stop(config.max_hours) as request:
            rank, _, world = read_launcher_variables()
            with watch_ranks(folder, rank, world, config.stall_minutes * 60) as watch:
                summary = _run_watched(config, probe, request, watch)
    except Stopped:
        _leave_at_exit()
        raise
    except OSError as error:  # a full disk, where the run cannot go on without it
        raise KinspanError(ranks.describe_storage_error(error, folder)) from error
    except RuntimeError as error:
        if ranks.is_communication_failure(error):
            raise KinspanError(ranks.describe_communication_failure(error)) from error
        raise
    _leave_at_exit()  # not after an error: the other ranks may be waiting for this one
    return summary


@cache
def _leave_at_exit() -> None:
    """Leaves the process group when the program ends.

    Not when the run ends, because a second run in this program needs the process groups.
    """
    atexit.register(dist.destroy_process_group)


def _run_watched(config: PretrainConfig, probe: Probe | None, request: StopRequest, watch: Watch) -> dict[str, Any]:
    """Says what to do about a lack of memory. Where a collective failed, prints the cause, and gives the watchdog time
    to find out whether another rank has ended. The history keeps what the run ended by."""
    setup = None
    try:
        watch.mark(SETTING_UP, patient=True)  # weights and shards may come from afar
        setup = set_up(config)
        if config.probe and probe is None and setup.rank == 0:
            raise KinspanError(
                f"--probe {config.probe}: pass pretrain() what finetune.training.probe.make_probe returns, "
                "as its argument probe"
            )
        return _run(setup, probe, request, watch)
    except Exception as error:
        text = quote_error(error)
        if setup and is_out_of_memory(error):
            text = describe_out_of_memory(setup.layout.largest, setup.train_stream.max_length)
        elif ranks.is_communication_failure(error):
            text = ranks.describe_communication_failure(error)
            watch.wait_for_verdict(text)
        if setup and setup.rank == 0:  # before that the folder may be another run's
            note(setup.folder, FAILED, why=text)
        if setup and is_out_of_memory(error):
            raise KinspanError(text) from error
        raise


def _run(setup: Setup, probe: Probe | None, request: StopRequest, watch: Watch) -> dict[str, Any]:
    """Finds the checkpoint to resume from, trains to the last step, and writes the summary."""
    watch.mark("reading checkpoints", patient=True)
    _say(setup, *setup.notes)
    found = find_resumable(setup.folder / CHECKPOINTS, partial(_tell_damaged, setup))
    summary = setup.folder / SUMMARY
    if found and summary.exists() and get_step(found) >= setup.total_steps:
        _say(setup, f"this run is complete: see {summary}")
        return read_object(summary, "delete it to have it written again") if setup.rank == 0 else {}
    run = start_run(setup, found, probe, request, watch)
    with closing(run.board) if run.board else nullcontext():
        return _train_and_sum_up(run)


def _train_and_sum_up(run: Run) -> dict[str, Any]:
    setup, watch, summary = run.setup, run.watch, run.setup.folder / SUMMARY
    watch.mark("trying the largest batch")
    try_largest(run.engine, setup.train_stream, setup.layout)
    run.say(*describe_run(setup, run.engine.module))
    if setup.rank == 0:
        write_atomically(setup.folder / "config.yaml", yaml.safe_dump(as_dict(setup.config), sort_keys=False))
    watch.mark("reading the first block", patient=True)  # a remote one may take long
    setup.train_stream.batch(run.progress.step * setup.layout.size, 1)
    open_run(run)
    run.note(STARTED, ranks=setup.layout.world, process=os.getpid(), host=socket.gethostname())
    try:
        train(run)
    finally:
        run.say(*run.profile.finish())
        close_run(run)
        release_engine(run.engine)
    if setup.rank:
        return {}
    written = write_summary(setup, run.progress)
    run.note(FINISHED)
    print(f"done: {summary}", flush=True)
    return written


def _tell_damaged(setup: Setup, line: str) -> None:
    _say(setup, line)
    if setup.rank == 0:
        note(setup.folder, DAMAGED, why=line)


def _say(setup: Setup, *lines: str) -> None:
    if setup.rank == 0:
        for line in lines:
            print(line, flush=True)


def train(run: Run) -> None:
    """Once per step, in this order: stop if asked, measure, save, release, train, log.

    While a step runs, the ranks count the next one's batch, and tell whether one of them is to stop before it.
    """
    setup, config, total = run.setup, run.setup.config, run.setup.total_steps
    filler = setup.train_stream.batch(run.progress.step * setup.layout.size, 1)  # stands in for an empty micro-batch
    while True:
        step, began = run.progress.step, time.monotonic()
        saved = step == run.resumed_at  # then the checkpoint was written after this step was measured
        run.say(*run.profile.begin_step())
        run.mark(f"step {step}, counting tokens with the other ranks", "communication")
        counted = run.coming()
        if counted.stop:
            stop(run, saved)
        run.profile.enter("validation")
        if run.progress.due or not saved:
            measure(run)
        run.profile.enter("checkpoint")
        if not saved and step and (step % config.save_steps == 0 or step in (setup.schedule.decay_start, total)):
            save(run)
        if config.release_every and step and step % config.release_every == 0:
            release(run)
        if step >= total:
            break
        rate = setup.schedule.rate(step)
        set_learning_rate(run.engine, rate)
        run.clock.start()
        run.mark(f"step {step}, waiting for the next batch", "data wait")
        fetch_next(run, run.request.wanted())
        result = train_step(
            run.engine,
            counted=counted,
            filler=filler,
            layout=setup.layout,
            rank=setup.rank,
            seed=config.seed,
            step=step,
            weights=run.weights,
            mark=run.mark,
        )
        logged = (step + 1) % config.log_steps == 0 or step + 1 == total
        if logged:
            run.watch.mark(f"step {step}, waiting for the device")
        run.profile.enter("logging")
        run.clock.stop(counted, result.stats if logged else None)
        run.profile.count(map(run.clock.count_flops, filter(None, counted.batches)))
        count_step(run, result)
        run.progress.wall_seconds += time.monotonic() - began
        if logged:
            write_log(run, rate, result.grad_norm)
    if failure := run.writer.finish():
        raise KinspanError(f"the last checkpoint could not be written ({failure}): mend that, then start it again")


def count_step(run: Run, result: StepResult) -> None:
    """Adds an update to what the log and the next checkpoint tell."""
    run.window += result.stats
    run.skips.add(run.progress.step, result.skipped)
    run.progress.step += 1
    run.progress.tokens += result.tokens
    if run.log:
        run.log.step()


def write_log(run: Run, rate: float, grad_norm: Any) -> None:
    """Logs the figures of the steps since the last line, and looks for a spike of the loss."""
    sums = ranks.sum_by_name(run.window, run.setup.model.sum_names)
    run.window.zero_()
    count_skips(run)
    speed = run.clock.read(run.feeder.waited)
    return_freed_memory()
    if not any(sums.values()):  # every update was skipped
        return
    progress = run.progress
    values = compute_figures(sums, run.weights)
    values |= {"learning_rate": rate, "tokens": progress.tokens, "skipped_steps": progress.skipped}
    if grad_norm is not None and math.isfinite(norm := float(grad_norm)):  # not finite: the last update was skipped
        values["grad_norm"] = norm
    if run.log:
        run.log.write(progress.step, "train", values | speed)
    look_for_spike(run, values["loss"])
