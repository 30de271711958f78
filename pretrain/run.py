"""A pre-training run, from settings to summary.json: the training loop, and what surrounds it."""

import atexit
import math
import os
import socket
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch.distributed as dist
import yaml

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object, write_atomically
from pretrain.checkpoints.capture import full_weights
from pretrain.checkpoints.reader import find_resumable, get_step
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import release_engine
from pretrain.engine.device import describe_out_of_memory, is_out_of_memory, return_freed_memory
from pretrain.engine.engine import start_distributed
from pretrain.engine.history import DAMAGED, FAILED, FINISHED, STARTED, UNSAVED, note
from pretrain.engine.lock import lock_folder
from pretrain.engine.loop import Outcome
from pretrain.engine.run_folder import CHECKPOINTS, open_folder
from pretrain.engine.stop import Stopped, StopRequest, listen_for_stop
from pretrain.engine.watch import SETTING_UP, Watch, watch_ranks
from pretrain.engine.world import read_launcher_variables
from pretrain.release.release import write_release

from .config import PretrainConfig, as_dict
from .finished import SUMMARY
from .measure import measure, refresh_page, write_page
from .metrics import compute_figures
from .planning.checks import check
from .recovery import look_for_spike, tell_skipped
from .setup import Setup, set_up
from .state import Run, close_run, fetch_next, open_run, start_run
from .step import GlobalBatch, train_step, try_largest
from .summary import describe_run, write_summary


def pretrain(config: PretrainConfig) -> dict[str, Any]:
    """Begins or resumes the run that ``config`` describes, and returns its summary; every rank but rank 0 returns {}.

    All ranks call it. Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a
    signal or ``max_hours`` ended the run after a checkpoint.
    """
    check(config)
    folder = open_folder(config.output_dir)
    try:
        start_distributed(config.allow_cpu)
    except KinspanError:
        with suppress(OSError):  # where it holds something
            folder.rmdir()
        raise
    try:
        with lock_folder(folder), listen_for_stop(config.max_hours) as request:
            rank, _, world = read_launcher_variables()
            with watch_ranks(folder, rank, world, config.stall_minutes * 60) as watch:
                summary = _run_watched(config, request, watch)
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
    """Leaves the process group when the program ends: a second run in it needs the group."""
    atexit.register(dist.destroy_process_group)


def _run_watched(config: PretrainConfig, request: StopRequest, watch: Watch) -> dict[str, Any]:
    """Turns a lack of memory into advice, and has the watchdog find out whether a rank is gone where a collective
    failed."""
    setup = None
    try:
        watch.mark(SETTING_UP, patient=True)  # weights and shards may come from afar
        setup = set_up(config)
        return _run(setup, request, watch)
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


def _run(setup: Setup, request: StopRequest, watch: Watch) -> dict[str, Any]:
    watch.mark("reading checkpoints", patient=True)
    _say(setup, *setup.notes)

    def tell_damaged(line: str) -> None:
        _say(setup, line)
        if setup.rank == 0:
            note(setup.folder, DAMAGED, why=line)

    found = find_resumable(setup.folder / CHECKPOINTS, tell_damaged)
    summary = setup.folder / SUMMARY
    if not found and summary.exists():
        raise KinspanError(
            f"{setup.folder} holds a run that was complete, and its checkpoints are gone: give another --output_dir, "
            f"or delete {summary} to train it again"
        )
    if found and summary.exists() and get_step(found) >= setup.total_steps:
        _say(setup, f"this run is complete: see {summary}")
        return read_object(summary, "delete it to have it written again") if setup.rank == 0 else {}
    run = start_run(Pretraining, setup, found, request, watch)
    with closing(run.board) if run.board else nullcontext(), run.profiler or nullcontext():
        return _train_and_sum_up(run)


def _train_and_sum_up(run: "Pretraining") -> dict[str, Any]:
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
        run.loop()
        if failure := run.writer.finish():
            raise KinspanError(f"the last checkpoint could not be written ({failure}): mend that, then start it again")
    finally:
        close_run(run)
        release_engine(run.engine)
    if setup.rank:
        return {}
    written = write_summary(setup, run.progress)
    run.note(FINISHED)
    print(f"done: {summary}", flush=True)
    return written


def _say(setup: Setup, *lines: str) -> None:
    if setup.rank == 0:
        for line in lines:
            print(line, flush=True)


@dataclass(kw_only=True)
class Pretraining(Run):
    """A step of pre-training. While it runs, the ranks count the next one's batch, and whether one of
    them is to stop."""

    counted: GlobalBatch = field(init=False)

    def is_stop_asked(self) -> bool:
        self.watch.mark(f"step {self.progress.step}, counting tokens with the other ranks")
        self.counted = self.coming()
        return self.counted.stop

    def stop(self, saved: bool) -> None:
        """Leaves a page that says so."""
        try:
            super().stop(saved)
        except Stopped:
            if self.log:
                write_page(self, under_way=False)
            raise

    def measure_if_due(self, step: int) -> None:
        measure(self)

    def is_save_due(self, step: int) -> bool:
        return step % self.setup.config.save_steps == 0 or step in (self.schedule.decay_start, self.schedule.total)

    def export(self, step: int) -> None:
        every = self.setup.config.release_every
        if every and step and step % every == 0:
            release(self)

    def take_step(self, step: int, logged: bool) -> Outcome:
        counted = self.counted
        self.clock.start()
        self.watch.mark(f"step {step}, waiting for the next batch")
        fetch_next(self, self.request.wanted())
        result = train_step(
            self.engine,
            counted=counted,
            filler=self.filler,
            layout=self.setup.layout,
            rank=self.rank,
            seed=self.setup.config.seed,
            step=step,
            weights=self.weights,
            mark=self.watch.mark,
        )
        if logged:
            self.watch.mark(f"step {step}, waiting for the device")
        self.clock.stop(counted, result.sums if logged else None)
        if self.profiler:
            self.profiler.step()
        self.progress.tokens += counted.counts["num_tokens"]
        return result

    def tell_skipped(self, step: int) -> None:
        tell_skipped(self, step)

    def write_log(self, rate: float, grad_norm: Any) -> None:
        """Looks for a spike of the loss, too."""
        sums, progress = self.sum_window(self.setup.model.sum_names), self.progress
        speed = self.clock.read(self.feeder.waited)
        return_freed_memory()
        if not any(sums.values()):  # every update was skipped
            return
        values = compute_figures(sums, self.weights)
        values |= {"learning_rate": rate, "tokens": progress.tokens, "skipped_steps": progress.skipped}
        if grad_norm is not None and math.isfinite(norm := float(grad_norm)):  # not finite: the last update was skipped
            values["grad_norm"] = norm
        if self.log:
            self.log.write(progress.step, "train", values | speed)
        refresh_page(self)
        look_for_spike(self, values["loss"])


def release(run: Run) -> None:
    """Writes a release of this step; where it cannot be written, training goes on. One that is there already is kept
    only if this run was resumed at this step."""
    step = run.progress.step
    run.watch.mark(f"the release of step {step}", patient=True)
    folder = run.setup.folder / "releases" / f"step-{step:08d}"
    weights = full_weights(run.engine)
    if run.rank == 0 and not (folder.exists() and step == run.resumed_at):
        try:
            folder.parent.mkdir(exist_ok=True)
            write_release(run.setup.folder, weights, step, folder)
            run.say(f"released {folder}")
        except (KinspanError, OSError) as error:  # a full disk, or a card that somebody has edited
            text = f"step {step} is not released ({quote_error(error)}): training goes on"
            run.say(text)
            run.note(UNSAVED, why=text)
    ranks.barrier()
