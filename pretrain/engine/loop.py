"""The training loop of pre-training and of fine-tuning: stop, measure, save, step, log."""

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from data_pipeline.core.errors import KinspanError
from pretrain.checkpoints.writer import Writer
from pretrain.engine import ranks
from pretrain.engine.engine import puts_odd_sizes_last, set_learning_rate
from pretrain.engine.history import STOPPED
from pretrain.engine.log import Log
from pretrain.engine.schedule import Schedule
from pretrain.engine.stop import Stopped, StopRequest
from pretrain.engine.watch import Watch


@dataclass
class Progress:
    """What every checkpoint keeps of the loop; the same on all ranks, except ``wall_seconds``, which all starts add up
    to.

    odd_sizes_last: the order of the parameters in the optimizer, see runtime/engine.py
    window: the sums of all ranks since the last line of the log
    due:    this step was not measured yet, although it was due, because the run was asked to stop
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
    """What an update leaves, on the device: nothing here waits for it.

    sums:      float64, this rank's sums for the log; zeros where the update was skipped
    grad_norm: of the global gradient; a number, or a tensor that is read only when it is logged
    skipped:   bool ``[]``, the same on all ranks
    """

    sums: torch.Tensor
    grad_norm: Any
    skipped: torch.Tensor


@dataclass(kw_only=True)
class Loop(ABC):
    """The loop's state, and what every run does alike. What differs stands in the methods at the end.

    most_skips: so many skipped updates in a row end the run
    resumed_at: the step of the checkpoint that was loaded last; None where the run began anew
    skips:      of each step that is not yet counted in ``progress``, whether its update was skipped
    log:        None on all ranks but the first
    window:     float64 on the device, this rank's sums since the last line of the log
    """

    rank: int
    engine: Any
    writer: Writer
    schedule: Schedule
    progress: Progress
    request: StopRequest
    watch: Watch
    log_steps: int
    most_skips: int
    resumed_at: int | None = None
    skips: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    log: Log | None = None
    window: torch.Tensor = field(init=False)

    def loop(self) -> None:
        """Once per update, in this order: stop if asked, measure, save, step, log."""
        total = self.schedule.total
        while True:
            progress, began = self.progress, time.monotonic()  # going back after a spike replaces it
            step = progress.step
            saved = step == self.resumed_at  # then its checkpoint was written after this step was measured
            if self.is_stop_asked():
                self.stop(saved)
            if progress.due or not saved:
                self.measure_if_due(step)
            progress.due = False
            if step and not saved and self.is_save_due(step):
                self.save()
            self.export(step)
            if self.is_over(step):
                break
            logged = (step + 1) % self.log_steps == 0 or step + 1 == total
            rate = self.schedule.rate(step)
            set_learning_rate(self.engine, rate)
            outcome = self.take_step(step, logged)
            self.window += outcome.sums
            self.skips.append((step, outcome.skipped))
            progress.step += 1
            progress.wall_seconds += time.monotonic() - began
            if self.log:
                self.log.step()
            if logged:
                self.write_log(rate, outcome.grad_norm)

    def stop(self, saved: bool) -> None:
        """Ends the run with a checkpoint, by raising Stopped. ``saved``: the checkpoint of this step is there already

        Where this step is to be measured, the checkpoint says so, and the resumed run does it. Raises KinspanError
        where the checkpoint cannot be written.
        """
        step = self.progress.step
        if not saved:
            self.progress.due = True
            self.save()
        if failure := self.writer.finish():
            raise KinspanError(f"stopped, but without a checkpoint of step {step}: {failure}")
        reasons = [reason for reason in ranks.gather(self.request.reason) if reason]
        self.note(STOPPED, why=reasons[0])
        self.say(f"stopped at step {step}, with a checkpoint ({reasons[0]}): the same command again goes on")
        raise Stopped

    def save(self) -> None:
        """Writes a checkpoint. Afterwards rank 0 holds the sums of all ranks, so that a resumed run's additions round
        alike."""
        self.watch.mark(f"the checkpoint of step {self.progress.step}", patient=True)
        self.progress.window = ranks.sum_over_ranks(self.window).tolist()
        self.count_skips()
        self.writer.save(self.engine, asdict(self.progress))
        self.fill_window()

    def fill_window(self) -> None:
        """Gives the sums that ``progress`` holds to rank 0, and zeros to the others."""
        self.window = torch.tensor(self.progress.window, dtype=torch.float64, device=self.engine.device)
        if self.rank:
            self.window.zero_()

    def sum_window(self, names: tuple[str, ...]) -> dict[str, float]:
        """The sums of all ranks since the last line of the log, by name; they begin anew."""
        sums = ranks.sum_by_name(self.window, names)
        self.window.zero_()
        self.count_skips()
        return sums

    def count_skips(self) -> None:
        """Counts the updates that were skipped. Raises KinspanError after ``most_skips`` of them in a row."""
        progress, skips, self.skips = self.progress, self.skips, []
        flags = torch.stack([skipped for _, skipped in skips]).tolist() if skips else []  # one wait for the device
        for (step, _), skipped in zip(skips, flags, strict=True):
            progress.skipped_in_row = progress.skipped_in_row + 1 if skipped else 0
            progress.skipped += skipped
            if skipped:
                self.tell_skipped(step)
            if progress.skipped_in_row >= self.most_skips:
                raise KinspanError(
                    f"no loss or gradient was finite in {progress.skipped_in_row} steps in a row, up to step {step}: "
                    f"lower the learning rate (now {self.schedule.peak}), lengthen --warmup_steps, or use "
                    "--precision fp32, with another --output_dir"
                )

    def say(self, *lines: str) -> None:
        """Prints lines on rank 0, above the progress bar where there is one."""
        if self.rank == 0:
            for line in lines:
                self.log.say(line) if self.log else print(line, flush=True)

    def note(self, kind: str, **values: Any) -> None:  # noqa: B027  a run without a history keeps nothing
        """Adds to the run's history what happened, see runtime/history.py."""

    @abstractmethod
    def is_stop_asked(self) -> bool:
        """Whether a rank is to stop before the next update; the same on all ranks."""

    @abstractmethod
    def measure_if_due(self, step: int) -> None:
        """Validates where this step is due for it."""

    @abstractmethod
    def is_save_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written at this step."""

    def export(self, step: int) -> None:  # noqa: B027  not every run does
        """Writes what others load, such as the best ranker, where this step is due for it; after the checkpoint."""

    def is_over(self, step: int) -> bool:
        """Whether no update follows."""
        return step >= self.schedule.total

    @abstractmethod
    def take_step(self, step: int, logged: bool) -> Outcome:
        """Trains on the next global batch. ``logged``: a line of the log follows"""

    @abstractmethod
    def tell_skipped(self, step: int) -> None:
        """Says that this update was skipped."""

    @abstractmethod
    def write_log(self, rate: float, grad_norm: Any) -> None:
        """Logs the figures of the updates since the last line."""
