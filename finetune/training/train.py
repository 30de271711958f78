"""One run of fine-tuning: from a checkpoint and a training set to the ranker that is best on the dev set."""

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.reports.facts import write_card
from pretrain.checkpoints.capture import full_weights
from pretrain.checkpoints.elastic import convert_to_universal
from pretrain.checkpoints.reader import find_resumable, load_checkpoint
from pretrain.checkpoints.writer import Writer
from pretrain.runtime.deepspeed_compat import disable_overflow_error, release_engine
from pretrain.runtime.engine import set_learning_rate
from pretrain.runtime.finite import Skips, is_ordinary_overflow
from pretrain.runtime.layout import Layout
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.log import Log
from pretrain.runtime.out_of_memory import is_out_of_memory, return_freed_memory
from pretrain.runtime.ranks import (
    barrier,
    broadcast_from_rank_0,
    describe_communication_failure,
    gather,
    is_communication_failure,
    start_sum,
    sum_by_name,
)
from pretrain.runtime.run_folder import CHECKPOINTS, SUMMARY, check_shared, claim_folder, holds_this_run, open_folder
from pretrain.runtime.stop import Stopped, StopRequest, listen_for_stop
from pretrain.runtime.watch import Watch, watch_ranks

from .config import FinetuneConfig, get_max_length, list_metrics
from .engine import Ranks, check_begun_alike, make_engine
from .groups import Groups
from .materials import Materials, load_materials
from .plan import DEV, Stage, describe_plan, draw_groups, largest_group, name_best
from .update import Outcome

SUMS = ("loss", "groups")  # what the log is made of, see update.Outcome
NUM_CHECKPOINTS = 2  # so many stay: where the newest is damaged, the run goes on from the one before


def train_ranker(config: FinetuneConfig, stage: Stage, seed: int, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Runs, or goes on with, one run in ``folder``, and returns its summary. The best ranker on each
    dev set lies in ``folder``, see ``plan.name_best``.

    Run by every rank. Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a
    signal or ``max_hours`` ended the run with a checkpoint.
    """
    record = {**stage.identity, "seed": seed}
    if summary := _read_summary(folder, record):
        return summary
    with lock_folder(open_folder(folder)), listen_for_stop(config.max_hours) as request, _explain_failures():
        if summary := _read_summary(folder, record):  # another process has completed it in the meantime
            return summary
        check_shared(folder)
        materials = load_materials(config, stage, seed, ranks)
        # Only now: what cannot be loaded leaves the folder free.
        broadcast_from_rank_0(lambda: claim_folder(folder, record))
        with watch_ranks(folder, ranks.rank, ranks.world, config.stall_minutes * 60) as watch:
            return _Run(config, stage, seed, folder, ranks, materials, request, watch).run()


def _read_summary(folder: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of the run, where it is complete. Raises KinspanError where the folder holds something else."""

    def read() -> dict[str, Any] | None:
        if holds_this_run(folder, record) and (folder / SUMMARY).is_file():
            return read_object(folder / SUMMARY, f"delete it to train {folder} again")
        return None

    return broadcast_from_rank_0(read)


@contextmanager
def _explain_failures() -> Iterator[None]:
    """Says in one line that a collective failed."""
    try:
        yield
    except Exception as error:
        if is_communication_failure(error):
            raise KinspanError(describe_communication_failure(error)) from error
        raise


def describe_out_of_memory(config: FinetuneConfig, layout: Layout) -> str:
    """One line with the flags to change. No micro-batch can be smaller than one group."""
    group = largest_group(config)
    pairs = layout.largest * group
    short = f"out of memory with {pairs} pairs of {get_max_length(config)} tokens"
    if pairs > group:
        return f"{short}: start it again with --micro_batch_size below {pairs} (the batch stays, and the run goes on)"
    lower = "--max_length" if group == 1 else "--list_size or --max_length"
    return f"{short}: lower {lower}, with another --output_dir"


@dataclass
class Progress:
    """All that a checkpoint keeps beside the engine's state; the same on all ranks but for ``wall_seconds``.

    best_step:      for each dev set, the step at which its MAP was highest
    best_map:       for each dev set, that MAP
    not_improved:   validations in a row that improved the MAP of no dev set
    window:         the sums of SUMS since the last line of the log; a resumed run gives them all to rank 0
    due:            the run was stopped before it validated at this step, if it validates here
    skipped:        updates that were skipped because a loss or gradient was not finite
    skipped_in_row: how many of the last updates were skipped, one after the other
    """

    step: int = 0
    best_step: dict[str, int] = field(default_factory=dict)
    best_map: dict[str, float] = field(default_factory=dict)
    not_improved: int = 0
    wall_seconds: float = 0.0
    world_size: int = 1
    window: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    due: bool = False
    skipped: int = 0
    skipped_in_row: int = 0


def read_progress(state: dict[str, Any]) -> Progress:
    """The progress that a checkpoint holds. Older ones knew one dev set, and no step or MAP as -1."""
    if not isinstance(state["best_step"], dict):
        step, best = state["best_step"], state["best_map"]
        state |= {"best_step": {DEV: step}, "best_map": {DEV: best}} if step >= 0 else {"best_step": {}, "best_map": {}}
    return Progress(**state)


class _Run:
    """The loop, and what it works with."""

    def __init__(
        self,
        config: FinetuneConfig,
        stage: Stage,
        seed: int,
        folder: Path,
        ranks: Ranks,
        materials: Materials,
        request: StopRequest,
        watch: Watch,
    ) -> None:
        self.config, self.stage, self.seed, self.folder, self.ranks = config, stage, seed, folder, ranks
        self.materials, self.plan, self.request, self.watch = materials, materials.plan, request, watch
        self.checkpoints = folder / CHECKPOINTS
        self.progress = Progress(world_size=ranks.world)
        self.resumed_at: int | None = None
        self.skips, self.speed = Skips(), Speed()
        self.log: Log | None = None
        self.engine: Any = None
        background = torch.cuda.is_available()  # on a processor the cores that would write are those that train
        self.writer = Writer(self.checkpoints, ranks.rank, NUM_CHECKPOINTS, background=background, tell=self.say)

    def run(self) -> dict[str, Any]:
        try:
            self.start()
            self.loop()
            return self.finish()
        except Exception as error:
            if is_out_of_memory(error):
                raise KinspanError(describe_out_of_memory(self.config, self.materials.layout)) from error
            if is_communication_failure(error):
                self.watch.wait_for_verdict(describe_communication_failure(error))
            raise
        finally:
            if self.log:
                self.log.close()
            if self.engine is not None and self.ranks.deepspeed is not None:
                release_engine(self.engine)

    def start(self) -> None:
        """Builds the engine, and takes up the newest checkpoint that is whole."""
        self.watch.mark("reading checkpoints", patient=True)
        self.say(*self.materials.notes, describe_plan(self.config, self.stage, self.plan))
        found = find_resumable(self.checkpoints, self.say)
        if found:
            check_begun_alike(found, self.ranks.deepspeed)
        world, materials = self.ranks.world, self.materials
        universal = convert_to_universal(found, world, self.ranks.rank) if found else None
        self.engine, self.precision = make_engine(materials.ranker, self.config, materials.layout, self.ranks.deepspeed)
        if found:
            self.progress = read_progress(load_checkpoint(self.engine, found, world, universal))
            disable_overflow_error(self.engine)  # what was loaded has its own scaler
            self.resumed_at = self.progress.step
            self.say(f"resuming from {found} at step {self.progress.step}")
        self.fill_window()
        if self.ranks.rank == 0:
            what, undone = (
                f"{self.stage.what}, seed {self.seed}",
                tuple(self.materials.measured) if self.progress.due else (),
            )
            settings = {**asdict(self.config), "seed": self.seed}
            self.log = Log(self.folder, self.progress.step, self.plan.total, what, undone, settings)

    def loop(self) -> None:
        """Stop?, validate, save, keep the best, enough?, update, log: in this order, once a step.

        While an update runs, the ranks tell one another whether one of them is to stop before the next one.
        """
        config, plan, progress = self.config, self.plan, self.progress
        eval_steps = self.stage.eval_steps or plan.epoch_steps
        groups, epoch = draw_groups(config, self.stage, self.seed, 0), 0
        requests = start_sum([0])  # at least one update is made before a stop
        while True:
            step, began = progress.step, time.monotonic()
            saved = step == self.resumed_at
            self.watch.mark(f"step {step}, asking the other ranks whether to stop")
            if requests()[0]:
                self.stop()
            validates = (progress.due or not saved) and (step % eval_steps == 0 or step == plan.total)
            if validates:
                self.validate()
            progress.due = False
            if step and not saved and (validates or step % config.save_steps == 0):  # the start needs no checkpoint
                self.save()
            for dev in [dev for dev, best in progress.best_step.items() if best == step]:
                self.keep_best(dev)  # after the checkpoint, from which a killed run then writes it anew
            if step >= plan.total or progress.not_improved > config.patience:
                break
            if step // plan.epoch_steps != epoch:
                epoch = step // plan.epoch_steps
                groups = draw_groups(config, self.stage, self.seed, epoch)
            rate = plan.schedule.rate(step)
            set_learning_rate(self.engine, rate)
            requests = start_sum([int(self.request.wanted())])
            outcome = self.update(groups, step)
            progress.step += 1
            progress.wall_seconds += time.monotonic() - began
            if self.log:
                self.log.step()
            if progress.step % config.log_steps == 0 or progress.step == plan.total:
                self.write_log(rate, outcome)

    def say(self, *lines: str) -> None:
        if self.ranks.rank == 0:
            for line in lines:
                self.log.say(line) if self.log else print(line, flush=True)

    def update(self, groups: Groups, step: int) -> Outcome:
        """Trains on the next groups of the epoch, of which the last batch may have fewer."""
        began, size = time.monotonic(), self.materials.layout.size
        first = (step % self.plan.epoch_steps) * size
        count = min(size, len(groups) - first)
        batch = groups.order_longest_first(first, count, self.materials.measure)
        outcome = self.materials.update(self.engine, groups, batch, step, self.watch.mark)
        self.window += outcome.sums
        self.skips.add(step, outcome.skipped)
        self.speed.add(groups.num_rows(batch), time.monotonic() - began)
        return outcome

    def validate(self) -> None:
        """Measures the dev sets, and notes where the ranker is the best so far; measures the test set, if asked."""
        progress = self.progress
        progress.not_improved += 1
        for split in self.materials.measured:
            figures = self.measure(split)
            if split in self.stage.devs and figures[MAP] > progress.best_map.get(split, -1.0):
                progress.not_improved = 0
                progress.best_step[split], progress.best_map[split] = progress.step, figures[MAP]
            if self.log:
                self.log.write(progress.step, split, {**figures, "epoch": progress.step / self.plan.epoch_steps})

    def measure(self, split: str) -> dict[str, float]:
        data, score = self.materials.measured[split]
        self.engine.module.eval()
        ranker = self.engine.module if self.ranks.deepspeed is None else self.engine
        what = f"validation of step {self.progress.step}, {split}"
        scores = score(ranker, self.engine.device, what=what, mark=self.watch.mark)
        return compute_means(compute_question_metrics(data, scores, list_metrics(self.config)))

    def save(self) -> None:
        """Checkpoints; the sums of the log go on as a resumed run would find them."""
        self.watch.mark(f"the checkpoint of step {self.progress.step}", patient=True)
        self.progress.window = list(sum_by_name(self.window, SUMS).values())
        self.read_skips()
        self.writer.save(self.engine, asdict(self.progress))
        self.fill_window()

    def fill_window(self) -> None:
        """The sums since the last line of the log, as the progress has them: all of them on rank 0."""
        sums = self.progress.window if self.ranks.rank == 0 else [0.0] * len(SUMS)
        self.window = torch.tensor(sums, dtype=torch.float64, device=self.engine.device)

    def stop(self) -> None:
        """Ends the run with a checkpoint. The validation of this step is left to the run that goes on."""
        step = self.progress.step
        self.progress.due = True
        self.save()
        if failure := self.writer.finish():
            raise KinspanError(f"stopped, but without a checkpoint of step {step}: {failure}")
        reasons = [reason for reason in gather(self.request.reason) if reason]
        self.say(f"stopped at step {step}, with a checkpoint ({reasons[0]}): the same command again goes on")
        raise Stopped

    def keep_best(self, dev: str) -> None:
        """Replaces the best ranker on a dev set by this one, once the checkpoint that says so is on the disk."""
        self.watch.mark(f"the best ranker, of step {self.progress.step}", patient=True)
        self.writer.join()
        weights = full_weights(self.engine)
        if self.ranks.rank == 0:
            best = self.folder / name_best(dev)
            partial_folder = best.with_name(best.name + ".tmp")
            shutil.rmtree(partial_folder, ignore_errors=True)
            self.materials.save(weights, partial_folder)
            figures = {dev: {MAP: self.progress.best_map[dev]}}
            write_card(partial_folder, self.config, self.stage, self.seed, self.progress.step, figures)
            shutil.rmtree(best, ignore_errors=True)
            partial_folder.replace(best)
        barrier()

    def write_log(self, rate: float, outcome: Outcome) -> None:
        """A line of the loss since the last one; none where every update was skipped."""
        loss, count = sum_by_name(self.window, SUMS).values()
        self.window.zero_()
        self.read_skips()
        speed = self.speed.read()
        return_freed_memory()
        if not count or self.log is None:
            return
        progress = self.progress
        values = {"loss": loss / count, "learning_rate": rate, "epoch": progress.step / self.plan.epoch_steps}
        values["skipped_steps"] = progress.skipped
        if outcome.grad_norm is not None and math.isfinite(norm := float(outcome.grad_norm)):  # else it was skipped
            values["grad_norm"] = norm
        self.log.write(progress.step, "train", {**values, "pairs_per_second": speed})

    def read_skips(self) -> None:
        """Counts the updates that were skipped, and ends a run of nothing else. Raises KinspanError."""
        progress = self.progress
        for step, skipped in self.skips.read():
            progress.skipped_in_row = progress.skipped_in_row + 1 if skipped else 0
            progress.skipped += skipped
            if skipped and self.log:
                self.log.write(step + 1, "skipped", {"skipped_steps": progress.skipped})
                if not is_ordinary_overflow(self.precision, progress.skipped_in_row):
                    self.say(f"step {step}: a loss or gradient was not finite, and the update was skipped on all ranks")
            if progress.skipped_in_row >= self.config.max_skipped_steps:
                raise KinspanError(
                    f"no loss or gradient was finite in {progress.skipped_in_row} steps in a row, up to step {step}: "
                    f"lower the learning rate (now {self.stage.learning_rate}), lengthen --warmup_steps, or use "
                    "--precision fp32, with another --output_dir"
                )

    def finish(self) -> dict[str, Any]:
        """Writes summary.json, last of all; the checkpoints are then of no use."""
        progress = self.progress
        self.writer.join()
        self.read_skips()
        summary = {
            "steps": progress.step,
            "epoch_steps": self.plan.epoch_steps,
            **{f"best_step{dev.removeprefix(DEV)}": step for dev, step in progress.best_step.items()},
            **{f"{dev}_map": best_map for dev, best_map in progress.best_map.items()},
            "stopped": "early" if progress.not_improved > self.config.patience else "at the last epoch",
            "skipped_steps": progress.skipped,
            "precision": self.precision,
            "wall_seconds": round(progress.wall_seconds, 1),
        }
        if unchanged := [dev for dev, step in progress.best_step.items() if step == 0]:
            self.say(f"no validation of {', '.join(unchanged)} was better than the start, which is the best ranker")
        if self.ranks.rank == 0:
            write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        barrier()
        return summary


class Speed:
    """Pairs and seconds of the updates since the last line of the log; validation and saving do not count."""

    def __init__(self) -> None:
        self.pairs, self.seconds = 0, 0.0

    def add(self, pairs: int, seconds: float) -> None:
        self.pairs, self.seconds = self.pairs + pairs, self.seconds + seconds

    def read(self) -> float:
        """Pairs per second of all ranks; then it starts afresh."""
        speed = self.pairs / max(self.seconds, 1e-9)
        self.pairs, self.seconds = 0, 0.0
        return speed
