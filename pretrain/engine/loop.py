"""The training loop of pre-training and fine-tuning: progress, sums for the log, skipped updates, stopping."""

import logging
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Protocol

import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import Engine
from pretrain.engine.engine import puts_odd_sizes_last
from pretrain.engine.log import Log
from pretrain.engine.schedule import Schedule
from pretrain.engine.stop import Interrupted, Stopped, StopRequest, interrupts
from pretrain.engine.watch import note_place

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """The state of the loop in a checkpoint; the same on all ranks, except ``wall_seconds``, summed over all starts.

    odd_sizes_last: the order of the parameters in the optimizer, see engine.puts_odd_sizes_last
    window: the sums of all ranks since the last line of the log
    due:    validation is due at this step; a checkpoint is written before it
    """

    step: int = 0
    wall_seconds: float = 0.0
    world_size: int = 1
    odd_sizes_last: bool = field(default_factory=puts_odd_sizes_last)
    window: list[float] = field(default_factory=list)
    due: bool = False
    skipped: int = 0
    skipped_in_row: int = 0


@dataclass(frozen=True)
class Outcome:
    """Results of an update, on the device: nothing here waits for it.

    sums:      float64, this rank's sums for the log; zeros if the update was skipped
    grad_norm: norm of the global gradient, read only when it is logged
    skipped:   bool ``[]``, the same on all ranks
    """

    sums: torch.Tensor
    grad_norm: torch.Tensor | float | None
    skipped: torch.Tensor


class CheckpointWriter(Protocol):
    """Writes checkpoints, see pretrain.checkpoints.writer.Writer."""

    def save(self, engine: Engine, state: JsonObject) -> None: ...

    def join(self) -> None: ...

    def finish(self) -> str | None: ...


@dataclass(kw_only=True)
class LoopState(ABC):
    """The state of a training loop.

    max_skips:  this many skipped updates in a row end the run
    saved_at:   the step of the last checkpoint, loaded or written; None without one
    skips:      for each update not yet counted in ``progress``, its step, and on the device whether it was skipped
    metrics:    None on all ranks but rank 0
    window:     float64 on the device, this rank's sums since the last line of the log
    """

    rank: int
    engine: Engine
    writer: CheckpointWriter
    schedule: Schedule
    progress: Progress
    request: StopRequest
    max_skips: int
    saved_at: int | None = None
    skips: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    metrics: Log | None = None
    window: torch.Tensor = field(init=False)

    @abstractmethod
    def validate(self) -> None:
        """Measures the model, and logs the figures."""

    @abstractmethod
    def warn_skipped(self, step: int) -> None:
        """Logs that this update was skipped."""

    def count_update(self, outcome: Outcome) -> None:
        """Adds up the results of an update, without waiting for the device."""
        self.window += outcome.sums
        self.skips.append((self.progress.step, outcome.skipped))
        self.progress.step += 1
        self.request.has_updated = True
        if self.metrics:
            self.metrics.bar.update(1)

    def stop(self) -> None:
        """Raises Stopped, after writing a checkpoint unless this step has one, or no update was made."""
        step = self.progress.step
        if step and step != self.saved_at:
            self.save()
        if failure := self.writer.finish():
            raise KinspanError(f"stopped, but without a checkpoint of step {step}: {failure}")
        reason = next(reason for reason in ranks.gather(self.request.reason) if reason)
        log.info("stopped at step %d (%s): the same command again goes on", step, reason)
        raise Stopped

    def validate_if_due(self) -> None:
        """Validates if that is due. Raises Stopped if a rank is asked to stop meanwhile; validation then stays due."""
        if self.progress.due:
            interrupts.append(lambda: any(ranks.gather(self.request.wanted())))
            try:
                self.validate()
            except Interrupted:
                self.stop()
            finally:
                interrupts.clear()
        self.progress.due = False

    def save(self) -> None:
        """Writes a checkpoint. Then rank 0 holds the sums of all ranks, as it will after resuming, to round alike."""
        note_place(f"the checkpoint of step {self.progress.step}", untimed=True)
        self.progress.window = ranks.sum_over_ranks(self.window).tolist()
        self.count_skips()
        self.saved_at = self.progress.step
        self.writer.save(self.engine, asdict(self.progress))
        self.restore_window()

    def restore_window(self) -> None:
        """Restores the checkpoint's sums on rank 0, and zeros elsewhere."""
        self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.engine.device)
        if self.rank:
            self.window.zero_()

    def sum_window(self, names: tuple[str, ...]) -> dict[str, float]:
        """Returns the sums of all ranks since the last line of the log, by name, and resets them."""
        sums = ranks.sum_by_name(self.window, names)
        self.window.zero_()
        self.count_skips()
        return sums

    def count_skips(self) -> None:
        """Counts the updates that were skipped. Raises KinspanError after ``max_skips`` of them in a row."""
        progress, skips, self.skips = self.progress, self.skips, []
        flags = torch.stack([skipped for _, skipped in skips]).tolist() if skips else []  # one wait for the device
        for (step, _), skipped in zip(skips, flags, strict=True):
            progress.skipped_in_row = progress.skipped_in_row + 1 if skipped else 0
            progress.skipped += skipped
            if skipped:
                self.warn_skipped(step)
            if progress.skipped_in_row >= self.max_skips:
                steps = f"in {progress.skipped_in_row} steps in a row, up to step {step}"
                raise KinspanError(f"--learning_rate: no loss or gradient was finite {steps}")
