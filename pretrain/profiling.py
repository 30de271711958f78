"""Where the time of training steps goes (``--profile``), beside the time that their arithmetic must take.

The training loop says at its marks which part of a step begins. After three steps the next ones are timed at the marks,
where a GPU is waited for; two more are traced by torch's profiler, whose own work would falsify the times.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from data_pipeline.core.files import describe_write_error
from pretrain.engine.deepspeed_compat import time_collectives

from .metrics import wait_for_device

PARTS = (
    "data wait",  # for the feeder's threads
    "forward",  # with the copy of the batch to the device
    "backward",
    "optimizer",
    "communication",  # DeepSpeed's collectives, wherever they are called, and the counts of the batch
    "validation",  # and the probe
    "checkpoint",  # and the release
    "logging",
    "other",
)
WARM_UP, TRACED = 3, 2  # steps
TRACE = "trace.json.gz"  # in the run's folder


class Profile:
    """Times and traces the steps of a run. With ``num_steps`` 0 it does nothing.

    peak:   TFLOP/s that the device reaches at most, which the floor is computed from
    traces: whether this rank writes a trace; all ranks time, since all wait at the same marks
    """

    def __init__(self, num_steps: int, folder: Path, peak: float, traces: bool) -> None:
        self.num_steps, self.folder, self.peak, self.traces = num_steps, folder, peak, traces
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.flops = 0.0
        self.timed = 0  # steps
        self._number = -1  # of the step under way, from where the run was started
        self._part, self._since = "other", 0.0
        self._current: dict[str, float] | None = None  # the times of the step under way; None where it is not timed
        self._collectives: Any = None
        self._tracer: Any = None
        self._range: Any = None

    def begin_step(self) -> list[str]:
        """A step begins, and the one before has ended. Returns the lines of the table once all is measured."""
        if not self.num_steps:
            return []
        self._end_step()
        self._number += 1
        if self._number == WARM_UP:
            self._collectives = time_collectives(self._begin_collective, self.enter)
        if WARM_UP <= self._number < WARM_UP + self.num_steps:
            wait_for_device()
            self._current = dict.fromkeys(PARTS, 0.0)
            self._part, self._since = "other", time.perf_counter()
        elif self._number == WARM_UP + self.num_steps:
            self._end_timing()
            self._begin_trace()
        elif self._number == WARM_UP + self.num_steps + TRACED:
            return self.finish()
        return []

    def enter(self, part: str) -> None:
        """Another part of the step begins: one of PARTS."""
        if self._current is not None:
            wait_for_device()
            now = time.perf_counter()
            self._current[self._part] += now - self._since
            self._part, self._since = part, now
        elif self._tracer:
            self._name_range(part)

    def count(self, flops: Iterable[float]) -> None:
        """Adds up the floating-point operations of this rank's micro-batches."""
        if self._current is not None:
            self.flops += sum(flops)

    def finish(self) -> list[str]:
        """Ends the measurement where it stands; returns the lines of the table, once."""
        if not self.num_steps:
            return []
        self._current = None  # a step that was cut off
        self._end_timing()
        lines = format_table(self.seconds, self.timed, self.flops, self.peak) if self.timed else []
        if self.timed < self.num_steps:
            lines.append(f"profile: the run ended after {self.timed} of {self.num_steps} steps to time")
        if self._tracer:
            self._name_range(None)
            lines.append(self._write_trace())
        self.num_steps = 0
        return lines

    def _end_step(self) -> None:
        if self._current is not None:
            self.enter("other")
            for part, seconds in self._current.items():
                self.seconds[part] += seconds
            self.timed += 1
            self._current = None

    def _begin_collective(self) -> str:
        before = self._part
        self.enter("communication")
        return before

    def _end_timing(self) -> None:
        if self._collectives:
            self._collectives()
            self._collectives = None

    def _begin_trace(self) -> None:
        if self.traces:
            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._tracer = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._tracer.start()

    def _write_trace(self) -> str:
        path, tracer, self._tracer = self.folder / TRACE, self._tracer, None
        tracer.stop()
        try:
            tracer.export_chrome_trace(str(path))
        except OSError as error:
            return describe_write_error(path, error)
        return f"a trace of the next steps: {path} (for chrome://tracing or ui.perfetto.dev)"

    def _name_range(self, part: str | None) -> None:
        """Ends the trace's range that is open, and opens one of this name."""
        if self._range:
            self._range.__exit__(None, None, None)
        self._range = record_function(part) if part else None
        if self._range:
            self._range.__enter__()


def format_table(seconds: dict[str, float], num_steps: int, flops: float, peak: float) -> list[str]:
    """A line for each part of the mean step, the largest first, and the floor.

    seconds: of all steps, by part
    flops:   of this rank's model in all steps
    peak:    TFLOP/s
    """
    total = sum(seconds.values())
    floor = flops / (peak * 1e12)
    rows = [(part, spent) for part, spent in sorted(seconds.items(), key=lambda item: -item[1]) if spent]
    lines = [f"where a step of rank 0 goes, mean of {num_steps} steps:"]
    for name, spent in [*rows, ("all", total), ("floor", floor)]:
        lines.append(f"  {name:<14}{1e3 * spent / num_steps:>10.2f} ms{100 * spent / total:>7.1f}%")
    work = f"{flops / num_steps / 1e12:.3g} TFLOP a step"
    lines.append(f"the floor is the model's {work} at {peak:.3g} TFLOP/s, a product of matrices measured here")
    return lines
