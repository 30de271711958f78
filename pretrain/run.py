"""A pre-training run, from settings to summary.json."""

import atexit
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object
from pretrain.checkpoints.capture import full_weights
from pretrain.checkpoints.elastic import convert_to_universal
from pretrain.checkpoints.reader import load_checkpoint, newest_on_all_ranks, remove_later, step_of
from pretrain.checkpoints.writer import Writer
from pretrain.evaluation.validation import evaluate
from pretrain.modeling.losses import LossWeights
from pretrain.release.release import write_release
from pretrain.runtime.engine import (
    OptimizerSettings,
    build_engine,
    leave_scale_to_guard,
    set_learning_rate,
    start_distributed,
)
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.log import Log
from pretrain.runtime.out_of_memory import describe_out_of_memory, is_out_of_memory
from pretrain.runtime.ranks import sum_by_name
from pretrain.runtime.schedule import learning_rate_of
from pretrain.runtime.stop import Stopped, StopRequest, listen_for_stop
from pretrain.runtime.watch import Watch, watch_ranks

from .batches import Feeder, batch_of_step
from .clock import Clock
from .config import PretrainConfig, as_dict, check
from .metrics import FlopCounter, compute_figures, padding_share, peak_tflops
from .progress import Progress
from .recovery import HISTORY, Skips, is_spike
from .runtime import ranks
from .setup import Setup, output_folder, set_up
from .step import StepResult, train_step, try_largest
from .summary import SUMMARY, description, write_summary

Probe = Callable[[Path], dict[str, float]]  # figures of a release
MOST_REWINDS = 5
MEASURES = ("validation", "probe")  # splits of the log that are written when a step is measured


def pretrain(config: PretrainConfig, probe: Probe | None = None) -> dict[str, Any]:
    """Runs, or goes on with, the pre-training that ``config`` describes, and returns its summary.

    probe: measures the model every ``config.probe_steps``, on rank 0; finetune.training.probe.make_probe makes it

    Run by every rank. Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a
    signal or ``max_hours`` ended the run after a writer.
    """
    check(config)
    folder = output_folder(config.output_dir)
    start_distributed()
    try:
        with lock_folder(folder), listen_for_stop(config.max_hours) as request:
            setup = set_up(config)
            if config.probe and probe is None and setup.rank == 0:
                raise KinspanError(
                    f"--probe {config.probe}: give pretrain(config, probe) finetune.training.probe.make_probe's"
                )
            with watch_ranks(folder, setup.rank, setup.layout.world, config.stall_minutes * 60) as watch:
                summary = _watched(_Run(setup, probe, request, watch))
    except Stopped:
        _leave_at_exit()
        raise
    except OSError as error:  # a full disk, where there is no going on without it
        raise KinspanError(ranks.describe_storage_error(error)) from error
    except RuntimeError as error:
        if ranks.is_peer_failure(error):
            raise KinspanError("another rank has ended: see what it said") from error
        raise
    _leave_at_exit()  # not after an error: the other ranks may be waiting for this one
    return summary


def _watched(run: "_Run") -> dict[str, Any]:
    """Runs it; where another rank is gone, the watchdog is given time to say which."""
    try:
        return run.run()
    except Exception as error:
        if is_out_of_memory(error):
            text = describe_out_of_memory(run.setup.layout.largest, run.setup.train.max_length)
            raise KinspanError(text) from error
        if ranks.is_peer_failure(error):
            run.watch.wait_for_verdict()
        raise


@cache
def _leave_at_exit() -> None:
    """Leaves the process group when the program ends, not before: a second run in it finds the groups in place."""
    atexit.register(dist.destroy_process_group)


class _Run:
    def __init__(self, setup: Setup, probe: Probe | None, request: StopRequest, watch: Watch) -> None:
        self.setup, self.config, self.probe = setup, setup.config, probe
        self.request, self.watch = request, watch
        self.weights = LossWeights(self.config.mlm_weight, self.config.pair_weight, self.config.rtd_weight)
        self.checkpoints = setup.folder / "checkpoints"
        self.names = setup.model.sum_names
        self.progress = Progress(world_size=setup.layout.world, window=[0.0] * len(self.names))
        self.log: Log | None = None
        self.resumed_at: int | None = None
        self.stopping = False
        self.skips = Skips()
        config = self.config
        self.writer = Writer(
            self.checkpoints,
            setup.rank,
            config.keep_checkpoints,
            config.keep_every,
            torch.cuda.is_available() if config.async_checkpoints is None else config.async_checkpoints,
            self.say,
        )

    def run(self) -> dict[str, Any]:
        self.watch.mark("reading checkpoints", patient=True)
        found, skipped = newest_on_all_ranks(self.checkpoints)
        self.say(*self.setup.notes, *(f"skipped a checkpoint that is not whole: {line}" for line in skipped))
        if skipped and not found:
            raise KinspanError(
                f"none of the checkpoints in {self.checkpoints} is whole, see above: put a copy back, or delete that "
                "folder to start from the beginning"
            )
        summary = self.setup.folder / SUMMARY
        if found and summary.exists() and step_of(found) >= self.setup.total_steps:
            self.say(f"this run is complete: see {summary}")
            return read_object(summary, "delete it to have it written again") if self.setup.rank == 0 else {}
        self.flops = FlopCounter(self.setup.model)
        universal = self.converted(found) if found else None  # before the engine takes memory
        self.engine = build_engine(self.setup.model, OptimizerSettings.of(self.config), self.setup.settings)
        if found:
            self.load(found, universal)
            self.say(f"resuming from {found} at step {self.progress.step}")
        self.watch.mark("trying the largest batch")
        try_largest(self.engine, self.setup.train, self.setup.layout)
        self.say(*description(self.setup, self.engine.module))
        if self.setup.rank == 0:
            (self.setup.folder / "config.yaml").write_text(yaml.safe_dump(as_dict(self.config), sort_keys=False))
        self.begin()
        try:
            self.loop()
        finally:
            self.feeder.close()
            if self.log:
                self.log.close()
        if self.setup.rank:
            return {}
        written = write_summary(self.setup, self.progress)
        print(f"done: {summary}", flush=True)
        return written

    def converted(self, found: Path) -> Path | None:
        return convert_to_universal(found, self.setup.layout.world, self.setup.rank)

    def load(self, found: Path, universal: Path | None) -> None:
        self.progress = Progress(**load_checkpoint(self.engine, found, self.setup.layout.world, universal))
        leave_scale_to_guard(self.engine)  # what was loaded has its own scaler
        self.resumed_at = self.progress.step

    def begin(self) -> None:
        """Takes up log, sums and batches where ``progress`` stands."""
        setup, progress = self.setup, self.progress
        self.window = torch.tensor(progress.window, dtype=torch.float64, device=self.engine.device)
        if setup.rank == 0:
            self.log = Log(setup.folder, progress.step, setup.total_steps, undone=MEASURES if progress.due else ())
        else:
            self.window.zero_()
        self.feeder = Feeder(
            setup.train, setup.layout, setup.rank, progress.step, self.config.num_workers, progress.left_out
        )

    def loop(self) -> None:
        """Evaluate, probe, save, stop?, step, log: in this order, once a step."""
        config, total = self.config, self.setup.total_steps
        filler = self.setup.train.batch(0, 1)
        clock = Clock()
        while True:
            progress = self.progress
            step, began = progress.step, time.monotonic()
            saved = step == self.resumed_at
            if self.stopping:
                self.stop(saved)
            if progress.due or not saved:  # else the checkpoint was written after these
                self.measure(step)
            if not saved and step and (step % config.save_steps == 0 or step == total):
                self.save()
            if config.release_every and step and step % config.release_every == 0:
                self.release()
            if step >= total:
                break
            rate = learning_rate_of(step, config.learning_rate, self.setup.warmup_steps, total)
            set_learning_rate(self.engine, rate)
            clock.start()
            self.watch.mark(f"step {step}, waiting for its batch")
            batches = self.feeder.next()
            result = train_step(
                self.engine,
                batches=batches,
                filler=filler,
                layout=self.setup.layout,
                rank=self.setup.rank,
                seed=config.seed,
                step=step,
                weights=self.weights,
                stopping=self.request.wanted(),
                mark=self.watch.mark,
            )
            self.window += result.stats
            self.skips.add(step, result.skipped)
            self.stopping = result.stop
            progress.step, progress.tokens = step + 1, progress.tokens + result.tokens
            clock.stop(result, sum(self.flops(b) for b in batches if b), [self.padding(b) for b in batches if b])
            if self.log:
                self.log.step()
            progress.wall_seconds += time.monotonic() - began
            if progress.step % config.log_steps == 0 or progress.step == total:
                self.write_log(clock, rate, result)
        if failure := self.writer.finish():
            raise KinspanError(f"the last checkpoint could not be written ({failure}): make room, then start it again")

    def padding(self, batch: Any) -> tuple[int, int]:
        half_on_gpu = self.engine.device.type == "cuda" and self.setup.facts["precision"] != "fp32"
        return padding_share(batch, jagged=half_on_gpu and self.setup.model.family.packed)

    def measure(self, step: int) -> None:
        config, last = self.config, step == self.setup.total_steps
        if step % config.eval_steps == 0 or last:
            self.evaluate()
        if config.probe and (step % config.probe_steps == 0 or last):
            self.run_probe()
        self.progress.due = False

    def evaluate(self) -> None:
        stream = self.setup.validation
        if stream is None:
            return
        values = evaluate(
            self.engine,
            stream,
            self.config.eval_pairs,
            self.config.micro_batch_size,
            self.setup.rank,
            self.setup.layout.world,
            self.weights,
            self.watch.mark,
        )
        if self.log:
            self.log.write(self.progress.step, "validation", values)

    def run_probe(self) -> None:
        """Hands rank 0's probe a release of this step, to be gone after; the other ranks wait.

        The run goes on as if nothing had been: dropout is seeded anew for each micro-batch.
        """
        self.watch.mark(f"the probe of step {self.progress.step}", patient=True)
        weights = full_weights(self.engine)
        if self.probe and self.log:
            folder = self.setup.folder / "probe"
            write_release(self.setup.folder, weights, self.progress.step, folder)
            del weights
            values = self.probe(folder)
            shutil.rmtree(folder)
            self.log.write(self.progress.step, "probe", values)
        ranks.barrier()

    def save(self) -> None:
        """Checkpoints; the log's window goes on as a resumed run would find it."""
        self.watch.mark(f"the checkpoint of step {self.progress.step}", patient=True)
        sums = sum_by_name(self.window, self.names)
        self.read_skips()
        self.progress.window = list(sums.values())
        self.writer.save(self.engine, asdict(self.progress))
        if self.setup.rank == 0:
            self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.window.device)
        else:
            self.window.zero_()

    def stop(self, saved: bool) -> None:
        """Ends the run with a writer. What is measured at this step is left to the run that goes on."""
        step = self.progress.step
        if not saved:
            self.progress.due = True
            self.save()
        if failure := self.writer.finish():
            raise KinspanError(f"stopped, but without a checkpoint of step {step}: {failure}")
        reasons = [reason for reason in ranks.gather(self.request.reason) if reason]
        self.say(f"stopped at step {step}, with a checkpoint ({reasons[0]}): the same command again goes on")
        raise Stopped

    def release(self) -> None:
        """Writes a release, unless this run was resumed at this step and it is there; any other is of other weights."""
        self.watch.mark(f"the release of step {self.progress.step}", patient=True)
        folder = self.setup.folder / "releases" / f"step-{self.progress.step:08d}"
        weights = full_weights(self.engine)
        if self.setup.rank == 0 and not (folder.exists() and self.progress.step == self.resumed_at):
            folder.parent.mkdir(exist_ok=True)
            write_release(self.setup.folder, weights, self.progress.step, folder)
            self.say(f"released {folder}")
        ranks.barrier()

    def read_skips(self) -> None:
        """Counts the updates that were skipped, says which examples were in them, and ends a run of nothing else."""
        progress, size = self.progress, self.setup.layout.size
        for step, skipped in self.skips.read():
            progress.skipped_in_row = progress.skipped_in_row + 1 if skipped else 0
            progress.skipped += skipped
            if skipped and self.log:
                first = batch_of_step(step, progress.left_out) * size
                self.log.write(
                    step + 1, "skipped", {"skipped_steps": progress.skipped, "example": first, "count": size}
                )
                self.say(
                    f"step {step}: a loss or gradient was not finite, and the update was skipped on all ranks; to see "
                    f"its pairs: launch/inspect_pairs.py --start {first} --count {size} --seed {self.config.seed} "
                    f"--objective {self.config.objective}, with this run's --corpus and --max_length"
                )
            if progress.skipped_in_row >= self.config.max_skipped_steps:
                raise KinspanError(
                    f"no loss or gradient was finite in {progress.skipped_in_row} steps in a row, up to step {step}: "
                    f"lower --learning_rate (now {self.config.learning_rate}), lengthen --warmup_steps, or use "
                    "--precision fp32, with another --output_dir"
                )

    def write_log(self, clock: Clock, rate: float, result: StepResult) -> None:
        sums = sum_by_name(self.window, self.names)
        self.window.zero_()
        self.read_skips()
        speed = clock.read(self.feeder, peak_tflops(self.config.peak_tflops, self.setup.facts["precision"]))
        if not any(sums.values()):  # every update was skipped
            return
        values = compute_figures(sums, self.weights)
        values |= {"learning_rate": rate, "tokens": self.progress.tokens, "skipped_steps": self.progress.skipped}
        if result.grad_norm is not None and math.isfinite(norm := float(result.grad_norm)):  # else it was skipped
            values["grad_norm"] = norm
        if self.log:
            self.log.write(self.progress.step, "train", values | speed)
        self.look_for_spike(values["loss"])

    def look_for_spike(self, loss: float) -> None:
        progress, config = self.progress, self.config
        before, progress.losses = progress.losses, [*progress.losses, loss][-HISTORY:]
        if config.on_spike == "ignore" or not is_spike(loss, before):
            return
        self.say(f"step {progress.step}: the loss leapt to {loss:.3f}, from {before[-1]:.3f}")
        if config.on_spike == "rewind":
            self.rewind()

    def rewind(self) -> None:
        """Goes back to the checkpoint before the last line of the log, and leaves the batches of that line out."""
        progress = self.progress
        self.watch.mark(f"going back from step {progress.step}", patient=True)
        line = (progress.step - 1) // self.config.log_steps * self.config.log_steps  # its first step
        self.writer.join()
        found, _ = newest_on_all_ranks(self.checkpoints, line)
        if found is None:
            self.say("there is no checkpoint before it: training goes on")
            return
        if progress.rewinds >= MOST_REWINDS:
            raise KinspanError(
                f"the loss leapt again at step {progress.step}, after {MOST_REWINDS} rewinds: lower --learning_rate, "
                "with another --output_dir"
            )
        out = [batch_of_step(step, progress.left_out) for step in (line, progress.step - 1)]
        left_out = [old for old in progress.left_out if not out[0] <= old[0] <= out[1]] + [out]
        self.feeder.close()
        waited = self.feeder.waited
        if self.log:
            self.log.close()
        self.load(found, self.converted(found))
        self.progress.left_out, self.progress.rewinds = left_out, progress.rewinds + 1
        for folder in (self.checkpoints, self.setup.folder / "releases"):
            ranks.broadcast_from_rank_0(partial(remove_later, folder, self.progress.step))
        self.begin()
        self.feeder.waited = waited
        self.say(f"went back to {found}; batches {out[0]} to {out[1]} are left out")

    def say(self, *lines: str) -> None:
        if self.setup.rank == 0:
            for line in lines:
                self.log.say(line) if self.log else print(line, flush=True)
