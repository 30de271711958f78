"""A run under way: the parts that the training loop works with, and where it stands."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import profile

from data_pipeline.sampling.batch import Batch
from pretrain.checkpoints.elastic import convert_to_universal
from pretrain.checkpoints.reader import load_checkpoint
from pretrain.checkpoints.writer import Writer
from pretrain.engine.deepspeed_compat import disable_overflow_error
from pretrain.engine.engine import build_engine
from pretrain.engine.history import UNSAVED, note
from pretrain.engine.log import Log
from pretrain.engine.loop import Loop, Progress
from pretrain.engine.run_folder import CHECKPOINTS
from pretrain.engine.stop import StopRequest
from pretrain.engine.watch import Watch
from pretrain.evaluation.validation import Validation
from pretrain.modeling.compilation import compile_encoders
from pretrain.modeling.losses import LossWeights

from .batches import Feeder
from .metrics import Clock, FlopCounter, find_peak_tflops
from .profiling import make_profiler
from .setup import Setup
from .step import GlobalBatch, start_count_reduction
from .watching.wandb_board import WandbBoard, open_board

R = TypeVar("R", bound="Run")
MEASURES = ("validation",)  # splits of the log that are written when a step is measured


@dataclass
class RunProgress(Progress):
    """What a checkpoint keeps of the loop; the window is by ``sum_names`` of the model.

    tokens:   that were trained on so far, by all ranks
    losses:   those of the last lines of the log, in which recovery.is_spike finds spikes
    """

    tokens: int = 0
    losses: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Run(Loop):
    """What pre-training works with beside the loop's own state. ``open_run`` makes what is not given.

    clock:     measures the speed
    profiler:  torch's, with ``--profile`` on rank 0
    board:     Weights & Biases, with ``--wandb`` on rank 0
    shown:     the pairs on the page of the run, once they were read
    validated: the step of the last validation, and what it found
    page_due:  when the page is to be written again, by the monotonic clock
    page_took: seconds that writing it took the last time
    filler:    stands in for an empty micro-batch
    feeder:    makes the batches from ``progress.step`` on
    coming:    waits for the next step's batch to be counted; see step.start_count_reduction
    """

    progress: RunProgress
    setup: Setup
    weights: LossWeights
    clock: Clock
    profiler: profile | None
    board: WandbBoard | None = None
    shown: list[dict[str, Any]] | None = None
    validated: tuple[int, Validation] | None = None
    page_due: float = 0.0
    page_took: float = 0.0
    filler: Batch = field(init=False)
    feeder: Feeder = field(init=False)
    coming: Callable[[], GlobalBatch] = field(init=False)

    def note(self, kind: str, step: int | None = None, **values: Any) -> None:
        """Adds to the run's history what happened, see runtime/history.py; at this step unless another is given."""
        if self.rank == 0:
            note(self.setup.folder, kind, self.progress.step if step is None else step, **values)


def start_run(kind: type[R], setup: Setup, found: Path | None, request: StopRequest, watch: Watch) -> R:
    """Builds the engine and loads the checkpoint ``found``; without one the run begins anew.

    kind: the class that says what a step of the loop is
    """
    config = setup.config

    def tell(line: str) -> None:
        run.say(line)
        run.note(UNSAVED, why=line)

    writer = Writer(
        setup.folder / CHECKPOINTS,
        setup.rank,
        config.keep_checkpoints,
        lambda step: step == setup.schedule.decay_start or bool(config.keep_every and step % config.keep_every == 0),
        torch.cuda.is_available() if config.async_checkpoints is None else config.async_checkpoints,
        tell=tell,
    )
    clock = Clock(
        FlopCounter(setup.model),  # made before the engine, which may divide the parameters among the ranks
        not setup.layout.padded,
        find_peak_tflops(config.peak_tflops, setup.facts["precision"]),
    )
    universal = (
        convert_to_universal(found, setup.layout.world, setup.rank) if found else None
    )  # before the engine takes memory
    run = kind(
        setup=setup,
        rank=setup.rank,
        request=request,
        watch=watch,
        engine=build_engine(setup.model, config, setup.deepspeed_settings),
        writer=writer,
        schedule=setup.schedule,
        log_steps=config.log_steps,
        most_skips=config.max_skipped_steps,
        weights=LossWeights(config.mlm_weight, config.pair_weight, config.rtd_weight),
        clock=clock,
        profiler=make_profiler(config.profile, setup.folder) if config.profile and setup.rank == 0 else None,
        progress=RunProgress(world_size=setup.layout.world, window=[0.0] * len(setup.model.sum_names)),
    )
    if setup.rank == 0 and config.wandb:
        watch.mark("opening Weights & Biases")
        run.board = open_board(setup.folder, config.wandb, setup.facts, run.say)
    if config.compile:
        compile_encoders(setup.model)
    if found:
        load(run, found, universal)
        run.say(f"resuming from {found} at step {run.progress.step}")
    return run


def load(run: Run, found: Path, universal: Path | None) -> None:
    """Puts a verified checkpoint into the engine and ``progress``. ``universal``: what ``convert`` returned for it"""
    run.progress = RunProgress(**load_checkpoint(run.engine, found, run.setup.layout.world, universal))
    disable_overflow_error(run.engine)  # the loss scaler that was loaded is another object
    run.resumed_at = run.progress.step


def open_run(run: Run) -> None:
    """Opens log, window and feeder where ``progress`` stands, and fetches the first batch."""
    setup, progress = run.setup, run.progress
    run.fill_window()
    run.filler = setup.train_stream.batch(progress.step * setup.layout.size, 1)
    if setup.rank == 0:
        undone = MEASURES if progress.due else ()
        settings = setup.facts["settings"]
        run.log = Log(
            setup.folder, progress.step, setup.total_steps, undone=undone, settings=settings, follower=run.board
        )
    workers = setup.config.num_workers
    run.feeder = Feeder(setup.train_stream, setup.layout, setup.rank, progress.step, workers, end=setup.total_steps)
    fetch_next(run, stopping=False)  # at least one step is trained before a stop
    run.feeder.waited = 0.0  # no step is under way yet


def fetch_next(run: Run, stopping: bool) -> None:
    """Takes the next batch from the feeder, and has the ranks begin to count it. ``stopping``: this one is to stop"""
    run.coming = start_count_reduction(run.feeder.next(), run.engine.module.losses, stopping)


def close_run(run: Run) -> None:
    """Closes what ``open_run`` has opened. The last count is not waited for: after an error others may
    never begin it."""
    run.feeder.close()
    if run.log:
        run.log.close()
