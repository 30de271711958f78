"""A trace of some steps of rank 0, with ``--profile``."""

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

log = logging.getLogger(__name__)
WAIT, WARM_UP = 3, 1  # steps before the traced ones
TRACE = "trace.json.gz"  # in the run's folder
ROWS = 15  # of the table


def make_profiler(num_steps: int, folder: Path) -> profile:
    """Returns torch's profiler, whose ``step`` the loop calls once per update.

    After ``num_steps`` traced steps it writes the trace and logs which operators took the most time.
    """
    gpu = torch.cuda.is_available()

    def finish(profiler: profile) -> None:
        order = "self_cuda_time_total" if gpu else "self_cpu_time_total"
        log.info("%s", profiler.key_averages().table(sort_by=order, row_limit=ROWS))
        try:
            profiler.export_chrome_trace(str(folder / TRACE))
        except OSError as error:
            log.warning("%s cannot be written: %s", folder / TRACE, error.strerror)
        else:
            log.info("trace of %d steps, for ui.perfetto.dev: %s", num_steps, folder / TRACE)

    return profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])],
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=num_steps, repeat=1),
        on_trace_ready=finish,
    )
