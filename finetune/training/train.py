"""One run of fine-tuning: from a checkpoint and a training set to the ranker that is best on the dev set."""

import json
import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from data_pipeline.core.files import JsonObject, read_object, write_atomically
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from pretrain.checkpoints.reader import convert_to_universal, find_resumable, load_checkpoint
from pretrain.checkpoints.writer import Writer, full_weights
from pretrain.engine.deepspeed_compat import release_engine
from pretrain.engine.deepspeed_config import zero_stage
from pretrain.engine.device import choose_precision, refuse_out_of_memory, return_freed_memory
from pretrain.engine.engine import build_engine, complete_settings, set_learning_rate
from pretrain.engine.log import Log
from pretrain.engine.loop import LoopState, Outcome, Progress
from pretrain.engine.ranks import barrier, broadcast_from_rank_0, report_failures, start_sum
from pretrain.engine.run_folder import (
    CHECKPOINTS,
    SUMMARY,
    check_shared,
    claim_folder,
    holds_this_run,
    lock_folder,
    open_folder,
)
from pretrain.engine.stop import StopRequest, listen_for_stop
from pretrain.engine.watch import note_place, watch_ranks
from pretrain.release.folder import refuse_unwritable

from .card import write_card
from .config import FinetuneConfig, list_metrics
from .groups import Groups
from .setup import RankerSetup, Ranks, load_setup
from .stages import BEST, DEV, LAST, SCORES, TrainingStage, draw_groups, name_best, name_scores

log = logging.getLogger(__name__)
SUMS = ("loss", "groups")  # names of ``Outcome.sums``
NUM_CHECKPOINTS = 2  # if the newest is damaged, the run resumes from the one before


def train_ranker(stage: TrainingStage, seed: int, folder: Path, ranks: Ranks) -> JsonObject:
    """Runs or resumes one run in ``folder``, and returns its summary.

    The best ranker on each dev set is saved in ``folder``, see ``stages.name_best``. Run by every rank.
    Raises Stopped (status 75) if a signal or ``max_hours`` ended the run with a checkpoint.
    """
    config, identity = stage.config, {**stage.identity, "seed": seed}
    if config.precision != "auto":  # which may resume as the "bf16" that it meant
        identity["precision_used"] = config.precision
    of_machine = {"precision_used", "deepspeed"} - identity.keys()
    finished = {"identity": identity, "changed": sorted(of_machine)}  # its table may be wanted on another machine
    if summary := _read_summary(folder, finished):
        return summary
    with report_failures(), lock_folder(open_folder(folder)), listen_for_stop(config.max_hours) as request:
        if summary := _read_summary(folder, finished):  # another process has completed it in the meantime
            return summary
        check_shared(folder)
        setup = load_setup(stage, seed, ranks)
        precision = choose_precision(config.precision, zero_stage(ranks.deepspeed))
        identity |= {"precision_used": precision, "deepspeed": ranks.deepspeed}
        # Only now, so that a failure to load does not claim the folder.
        broadcast_from_rank_0(lambda: claim_folder(folder, {"identity": identity}))
        with watch_ranks(folder, ranks.rank, ranks.world, config.stall_minutes * 60):
            return _train(stage, seed, folder, ranks, setup, precision, request)


def _read_summary(folder: Path, record: JsonObject) -> JsonObject | None:
    """Returns the summary of a complete run. Raises KinspanError if the folder holds something else."""

    def read() -> JsonObject | None:
        if holds_this_run(folder, record) and (folder / SUMMARY).is_file():
            return read_object(folder / SUMMARY, f"delete it to train {folder} again")
        return None

    return broadcast_from_rank_0(read)


@refuse_out_of_memory("out of memory: lower --micro_batch_size or --max_length")
def _train(
    stage: TrainingStage,
    seed: int,
    folder: Path,
    ranks: Ranks,
    setup: RankerSetup,
    precision: str,
    request: StopRequest,
) -> JsonObject:
    """Builds the engine, loads the newest complete checkpoint, and trains to the end; returns the summary."""
    config, checkpoints = stage.config, folder / CHECKPOINTS
    note_place("reading checkpoints", untimed=True)
    log.info("%s: at most %s updates, %s in an epoch", stage.what, setup.schedule.total, setup.epoch_steps)
    background = torch.cuda.is_available()  # on a CPU, writing would take cores from training
    writer = Writer(checkpoints, ranks.rank, NUM_CHECKPOINTS, background=background)
    checkpoint = find_resumable(checkpoints)
    universal = convert_to_universal(checkpoint, ranks.world, ranks.rank) if checkpoint else None
    settings = complete_settings(ranks.deepspeed, config.max_grad_norm, setup.layout, precision)
    run = _Run(
        rank=ranks.rank,
        engine=build_engine(setup.ranker, settings, config.learning_rate, config.weight_decay),
        writer=writer,
        schedule=setup.schedule,
        progress=FitProgress(world_size=ranks.world),
        request=request,
        max_skips=config.max_skipped_steps,
        stage=stage,
        seed=seed,
        folder=folder,
        setup=setup,
        precision=precision,
    )
    try:
        if checkpoint:
            run.progress = FitProgress(**load_checkpoint(run.engine, checkpoint, ranks.world, universal))
            run.saved_at = run.progress.step
            log.info("resuming from %s at step %s", checkpoint, run.progress.step)
        run.restore_window()
        run.count_stops = start_sum([0])  # at least one update is made before a stop
        if ranks.rank == 0:
            undone = tuple(setup.measured) if run.progress.due else ()  # this step is validated again
            run.metrics = Log(folder, run.progress.step, setup.schedule.total, f"{stage.what}, seed {seed}", undone)
        run.train()
        return run.finish()
    finally:
        if run.metrics:
            run.metrics.close()
        release_engine(run.engine)


@dataclass
class FitProgress(Progress):
    """The progress in a checkpoint, beside the engine's state. ``window`` holds the sums that SUMS names.

    best_step:    for each dev set, the step at which its MAP (``best_map``) was highest
    not_improved: validations in a row that improved the MAP of no dev set
    """

    window: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    best_step: dict[str, int] = field(default_factory=dict)
    best_map: dict[str, float] = field(default_factory=dict)
    not_improved: int = 0


@dataclass(kw_only=True)
class _Run(LoopState):
    """A run of fine-tuning on the training loop.

    precision:      the engine's precision
    pairs, seconds: pairs trained on since the last log line, and the duration of their updates
    groups:         the number of the epoch, and its groups in training order
    count_stops:    waits for the number of ranks that are asked to stop, and returns it in a list
    """

    progress: FitProgress
    stage: TrainingStage
    seed: int
    folder: Path
    setup: RankerSetup
    precision: str
    pairs: int = 0
    seconds: float = 0.0
    groups: tuple[int, Groups] | None = None
    count_stops: Callable[[], list[int]] = field(init=False)

    @property
    def config(self) -> FinetuneConfig:
        return self.stage.config

    def train(self) -> None:
        """Loops over updates; each time: stops if asked, saves, validates, keeps the best, steps, logs."""
        keeps_best = self.stage.keeps == BEST
        while True:
            step, began = self.progress.step, time.monotonic()
            if is_new := step != self.saved_at:  # else a checkpoint was loaded, which tells whether validation is due
                every = self.config.eval_steps or self.setup.epoch_steps
                self.progress.due = (step % every == 0 or step == self.schedule.total) and (keeps_best or step > 0)
            note_place(f"step {step}, asking the other ranks whether to stop")
            if self.count_stops()[0]:
                self.stop()
            if step and is_new and ((keeps_best and self.progress.due) or step % self.config.save_steps == 0):
                self.save()
            self.validate_if_due()
            for dev in [dev for dev, best in self.progress.best_step.items() if best == step and keeps_best]:
                self.keep_best(dev)  # a run killed here validates again when resumed, and so repeats it
            if step >= self.schedule.total or self.has_peaked:
                if self.stage.keeps == LAST:
                    self.keep_best(DEV)
                return
            rate = self.schedule.rate(step)
            set_learning_rate(self.engine, rate)
            epoch = step // self.setup.epoch_steps
            if self.groups is None or self.groups[0] != epoch:
                self.groups = epoch, draw_groups(self.stage, self.seed, epoch)
            self.count_stops = start_sum([int(self.request.wanted())])  # summed up during the update
            outcome = self.update(self.groups[1], step)
            self.count_update(outcome)
            if (step + 1) % self.config.log_steps == 0 or step + 1 == self.schedule.total:
                self.write_log(rate, outcome.grad_norm)
            self.progress.wall_seconds += time.monotonic() - began

    @property
    def has_peaked(self) -> bool:
        """Returns whether early stopping ends the run: more than ``patience`` validations in a row improved nothing."""
        return self.progress.not_improved > self.config.patience

    def update(self, groups: Groups, step: int) -> Outcome:
        """Trains on the next groups of the epoch, fewer in the epoch's last batch."""
        began, size = time.monotonic(), self.setup.layout.size
        first = (step % self.setup.epoch_steps) * size
        count = min(size, len(groups) - first)
        batch = groups.order_longest_first(first, count, self.setup.trainer.measure)
        outcome = self.setup.trainer.update(self.engine, groups, batch, step)
        self.pairs, self.seconds = self.pairs + len(groups.select(batch)[0]), self.seconds + time.monotonic() - began
        return outcome

    def validate(self) -> None:
        """Measures the dev sets, and records where the ranker is the best so far; measures the test set, if asked."""
        progress = self.progress
        measured = {split: self.measure(split) for split in self.setup.measured}  # all of them, as a stop may interrupt
        progress.not_improved += 1
        for split, figures in measured.items():
            if split in self.stage.devs and figures[MAP] > progress.best_map.get(split, -1.0):
                progress.not_improved = 0
                progress.best_step[split], progress.best_map[split] = progress.step, figures[MAP]
            if self.metrics:
                self.metrics.write(progress.step, split, {**figures, "epoch": progress.step / self.setup.epoch_steps})

    def measure(self, split: str) -> dict[str, float]:
        data, score = self.setup.measured[split]
        self.engine.module.eval()
        scores = score(self.engine, self.engine.device, f"validation of step {self.progress.step}, {split}")
        if self.stage.keeps == SCORES and self.rank == 0:
            np.save(self.folder / name_scores(self.progress.step), scores)
        return compute_means(compute_question_metrics(data, scores, list_metrics(self.config)))

    def keep_best(self, dev: str) -> None:
        """Replaces the best ranker on a dev set by this one, once this step's checkpoint is on the disk."""
        note_place(f"the best ranker, of step {self.progress.step}", untimed=True)
        self.writer.join()
        weights = full_weights(self.engine)
        if self.rank == 0:
            best = self.folder / name_best(dev)
            partial_folder = best.with_name(best.name + ".tmp")
            shutil.rmtree(partial_folder, ignore_errors=True)
            figures = {dev: {MAP: self.progress.best_map[dev]}} if dev in self.progress.best_map else {}
            with refuse_unwritable(best):
                self.setup.save(weights, partial_folder)
                write_card(partial_folder, self.stage, self.seed, self.progress.step, figures)
                shutil.rmtree(best, ignore_errors=True)
                partial_folder.replace(best)
        barrier()

    def write_log(self, rate: float, grad_norm: torch.Tensor | float | None) -> None:
        """Logs the mean loss since the last line; nothing if every update was skipped."""
        loss, count = self.sum_window(SUMS).values()
        speed, self.pairs, self.seconds = self.pairs / max(self.seconds, 1e-9), 0, 0.0
        return_freed_memory()
        if not count or self.metrics is None:
            return
        progress = self.progress
        values = {"loss": loss / count, "learning_rate": rate, "epoch": progress.step / self.setup.epoch_steps}
        values["skipped_steps"] = progress.skipped
        if grad_norm is not None and math.isfinite(norm := float(grad_norm)):  # else the last update was skipped
            values["grad_norm"] = norm
        self.metrics.write(progress.step, "train", {**values, "pairs_per_second": speed})

    def warn_skipped(self, step: int) -> None:
        if self.metrics:
            self.metrics.write(step + 1, "skipped", {"skipped_steps": self.progress.skipped})
            if self.precision != "fp16" or self.progress.skipped_in_row > 1:  # else it only adapts fp16's loss scale
                log.warning("step %s: a loss or gradient was not finite: the update was skipped", step)

    def finish(self) -> JsonObject:
        """Writes summary.json, and removes the checkpoints, which are then of no use."""
        progress = self.progress
        self.writer.join()
        self.count_skips()
        summary = {
            "steps": progress.step,
            "epoch_steps": self.setup.epoch_steps,
            **{f"best_step{dev.removeprefix(DEV)}": step for dev, step in progress.best_step.items()},
            **{f"{dev}_map": best_map for dev, best_map in progress.best_map.items()},
            "stopped": "early" if self.has_peaked else "at the last epoch",
            "skipped_steps": progress.skipped,
            "precision": self.precision,
            "wall_seconds": round(progress.wall_seconds, 1),
        }
        if unchanged := [dev for dev, step in progress.best_step.items() if step == 0]:
            log.warning("no validation of %s was better than step 0, whose ranker is kept", ", ".join(unchanged))
        if self.rank == 0:
            write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
            shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        barrier()
        return summary
