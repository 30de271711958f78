"""A pre-training run, from its settings to summary.json."""

import atexit
import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch.profiler import ProfilerActivity, profile, schedule

from data_pipeline.core.default_model import list_versions
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, read_object, write_atomically
from data_pipeline.sampling.batch import Batch
from pretrain.checkpoints.reader import convert_to_universal, find_resumable, get_step, load_checkpoint
from pretrain.checkpoints.writer import Writer
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import release_engine
from pretrain.engine.device import name_device, refuse_out_of_memory, return_freed_memory
from pretrain.engine.engine import build_engine, set_learning_rate
from pretrain.engine.log import Log, WandbBoard, find_ends, find_warnings, read_metrics
from pretrain.engine.loop import LoopState, Outcome, Progress
from pretrain.engine.run_folder import CHECKPOINTS, SUMMARY, lock_folder
from pretrain.engine.stop import Stopped, StopRequest, listen_for_stop
from pretrain.engine.watch import SETTING_UP, note_place, watch_ranks
from pretrain.engine.world import read_launcher_variables
from pretrain.modeling.compilation import compile_encoders
from pretrain.modeling.losses import LossWeights
from pretrain.release.curve import PRETRAINING_PANELS, draw_curve
from pretrain.validation import evaluate, evaluate_retrieval

from .batches import Feeder, average_tokens
from .config import PretrainConfig, as_dict
from .metrics import KEPT_LOSSES, Clock, FlopCounter, compute_figures, find_peak_tflops, is_spike
from .setup import Setup, begin, set_up
from .step import OUT_OF_MEMORY, GlobalBatch, start_count_reduction, train_step, try_largest

log = logging.getLogger(__name__)
WAIT, WARM_UP = 3, 1  # steps before --profile traces any
TRACE, TRACE_ROWS = "trace.json.gz", 15  # rows of the table of operators
CURVE, CURVE_SECONDS = "curve.png", 60.0  # minimum between two drawings
FEW_TOKENS = 15_000  # per micro-batch; on an H200, RoBERTa-base with 12,000 had 69% of its speed with 49,000


def pretrain(config: PretrainConfig) -> JsonObject:
    """Begins or resumes the run that ``config`` describes, and returns its summary; {} on ranks other than 0.

    All ranks call it. Raises KinspanError for what the user can fix, and Stopped (a SystemExit of status 75) if a
    signal or ``max_hours`` ended the run after a checkpoint.
    """
    folder = begin(config)
    rank, _, world = read_launcher_variables()
    try:
        with (
            ranks.report_failures(),
            lock_folder(folder),
            listen_for_stop(config.max_hours) as request,
            watch_ranks(folder, rank, world, config.stall_minutes * 60),
        ):
            summary = _run(config, request)
    except Stopped:
        _leave_at_exit()
        raise
    except OSError as error:  # such as a full disk
        raise KinspanError(f"{error.filename or folder} cannot be written: {quote_error(error)}") from error
    finally:
        torch.set_float32_matmul_precision("highest")  # in which rankers are scored after it
    _leave_at_exit()  # not after an error: the other ranks may be waiting for this one
    return summary


@cache
def _leave_at_exit() -> None:
    """Leaves the process group when the program ends, because a second run in it needs the group."""
    atexit.register(dist.destroy_process_group)


def _run(config: PretrainConfig, request: StopRequest) -> JsonObject:
    note_place(SETTING_UP, untimed=True)  # weights and shards may be remote
    setup = set_up(config)
    with refuse_out_of_memory(OUT_OF_MEMORY.format(setup.layout.largest, setup.train_stream.max_length)):
        note_place("reading checkpoints", untimed=True)
        checkpoint, summary = find_resumable(setup.folder / CHECKPOINTS), setup.folder / SUMMARY
        if not checkpoint and summary.exists():
            raise KinspanError(f"--output_dir {setup.folder}: the run is complete, but its checkpoints are gone")
        if checkpoint and summary.exists() and get_step(checkpoint) >= setup.schedule.total:
            log.info("this run is complete: see %s", summary)
            return read_object(summary, "delete it to have it written again") if setup.rank == 0 else {}
        run = Pretraining(setup, checkpoint, request)
        with run.resources:
            run.begin()
            run.train()
        return run.summarise()


@dataclass
class PretrainProgress(Progress):
    """The state of the loop in a checkpoint; the window is in the order of the model's ``sum_names``.

    tokens: number of tokens trained on so far, by all ranks
    losses: the last logged losses, for metrics.is_spike
    """

    tokens: int = 0
    losses: list[float] = field(default_factory=list)


class Pretraining(LoopState):
    """A run in progress.

    resources:   closes files and threads of the run
    filler:      replaces an empty micro-batch
    feeder:      makes the batches from ``progress.step`` on
    next_counts: waits for the counts of the next batch, and returns it, see step.start_count_reduction
    """

    progress: PretrainProgress
    filler: Batch
    feeder: Feeder
    next_counts: Callable[[], GlobalBatch]

    def __init__(self, setup: Setup, checkpoint: Path | None, request: StopRequest) -> None:
        """Builds the engine, and loads the checkpoint if there is one."""
        config, schedule = setup.config, setup.schedule
        self.setup, self.resources, self.curve_due = setup, ExitStack(), 0.0
        self.weights = LossWeights(config.mlm_weight or 0.0, config.pair_weight, config.rtd_weight)
        counter = FlopCounter(setup.model)  # before the engine, which may divide the parameters among the ranks
        self.clock = Clock(counter, config.peak_tflops or find_peak_tflops(setup.facts["precision"]))
        world = setup.layout.world  # the conversion needs memory, so it runs before the engine is built
        universal = convert_to_universal(checkpoint, world, setup.rank) if checkpoint else None
        super().__init__(
            rank=setup.rank,
            engine=build_engine(setup.model, setup.deepspeed_settings, config.learning_rate, config.weight_decay),
            writer=Writer(
                setup.folder / CHECKPOINTS,
                setup.rank,
                config.keep_checkpoints,
                lambda step: step == schedule.decay_start or bool(config.keep_every and step % config.keep_every == 0),
                torch.cuda.is_available() if config.async_checkpoints is None else config.async_checkpoints,
            ),
            schedule=schedule,
            progress=PretrainProgress(world_size=world, window=[0.0] * len(setup.model.sum_names)),
            request=request,
            max_skips=config.max_skipped_steps,
        )
        if config.compile:
            compile_encoders(setup.model.encoders)
        if checkpoint:
            self.progress = PretrainProgress(**load_checkpoint(self.engine, checkpoint, world, universal))
            self.saved_at = self.progress.step
            self.progress.due |= self.saved_at == schedule.total  # the run may have become shorter
            log.info("resuming from %s at step %d", checkpoint, self.progress.step)

    def begin(self) -> None:
        """Tries the largest batch, opens log and feeder, and fetches the first batch."""
        setup, progress, config = self.setup, self.progress, self.setup.config
        self.resources.callback(release_engine, self.engine)
        note_place("trying the largest batch")
        try_largest(self.engine, setup.train_stream, setup.layout)
        log_start(setup, self.engine.module)
        note_place("reading the first block", untimed=True)  # a remote one may take long
        self.filler = setup.train_stream.batch(progress.step * setup.layout.size, 1)
        self.restore_window()
        self.profiler = None
        if setup.rank == 0:
            write_atomically(setup.folder / "config.yaml", yaml.safe_dump(as_dict(config), sort_keys=False))
            board = WandbBoard(setup.folder, config.wandb, setup.facts["settings"]) if config.wandb else None
            undone = ("validation",) if progress.due else ()
            self.metrics = Log(setup.folder, progress.step, self.schedule.total, "pre-training", undone, board)
            self.resources.callback(self.metrics.close)
            if config.profile:
                self.profiler = self.resources.enter_context(make_profiler(config.profile, setup.folder))
        self.feeder = Feeder(
            setup.train_stream, setup.layout, self.rank, progress.step, config.num_workers, self.schedule.total
        )
        self.resources.callback(self.feeder.close)
        self.fetch_next(stopping=False)  # at least one step is trained before a stop
        self.feeder.waited = 0.0  # no step is under way yet

    def train(self) -> None:
        """Trains to the end. Once per update, in this order: stop if asked, save, validate, step, log."""
        config, total = self.setup.config, self.schedule.total
        while True:
            step, began = self.progress.step, time.monotonic()
            if is_new := step != self.saved_at:  # else a checkpoint was loaded, which tells whether validation is due
                self.progress.due = step % config.eval_steps == 0 or step == total
            note_place(f"step {step}, counting tokens with the other ranks")
            global_batch = self.next_counts()
            if global_batch.stop:
                self.stop()
            if step and is_new and (step % config.save_steps == 0 or step in (self.schedule.decay_start, total)):
                self.save()
            self.validate_if_due()
            if step >= total:
                break
            self.take_step(global_batch)
            self.progress.wall_seconds += time.monotonic() - began
        if failure := self.writer.finish():
            raise KinspanError(f"the last checkpoint could not be written ({failure}): fix that, and start it again")

    def take_step(self, global_batch: GlobalBatch) -> None:
        """Trains on a global batch. Meanwhile the ranks count the next one, and whether one of them should stop."""
        step, setup = self.progress.step, self.setup
        is_logged = (step + 1) % setup.config.log_steps == 0 or step + 1 == self.schedule.total
        rate = self.schedule.rate(step)
        set_learning_rate(self.engine, rate)
        self.clock.start()
        note_place(f"step {step}, waiting for the next batch")
        self.fetch_next(self.request.wanted())
        batches = global_batch, self.filler, setup.layout
        outcome = train_step(self.engine, *batches, self.rank, setup.config.seed, step=step, weights=self.weights)
        if is_logged:
            note_place(f"step {step}, waiting for the device")
        self.clock.stop(global_batch, outcome.sums if is_logged else None)
        self.progress.tokens += global_batch.counts["num_tokens"]
        self.count_update(outcome)
        if self.profiler:
            self.profiler.step()
        if is_logged:
            self.write_log(rate, outcome)

    def fetch_next(self, stopping: bool) -> None:
        """Takes the next batch, and starts to count it on all ranks. ``stopping``: this rank should stop"""
        self.next_counts = start_count_reduction(self.feeder.next(), self.engine.module.losses, stopping)

    def write_log(self, rate: float, outcome: Outcome) -> None:
        """Logs the figures since the last line, and warns of a spike in the loss."""
        sums, progress = self.sum_window(self.setup.model.sum_names), self.progress
        speed = self.clock.read(self.feeder.waited)
        return_freed_memory()
        if not any(sums.values()):  # every update was skipped
            return
        values = compute_figures(sums, self.weights)
        values |= {"learning_rate": rate, "tokens": progress.tokens, "skipped_steps": progress.skipped}
        if outcome.grad_norm is not None and math.isfinite(norm := float(outcome.grad_norm)):
            values["grad_norm"] = norm  # if it is not finite, the update was skipped
        if self.metrics:
            self.metrics.write(progress.step, "train", values | speed)
        if is_spike(values["loss"], progress.losses):
            log.warning("step %d: the loss rose from %.3f to %.3f", progress.step, progress.losses[-1], values["loss"])
        progress.losses = [*progress.losses, values["loss"]][-KEPT_LOSSES:]

    def warn_skipped(self, step: int) -> None:
        """Logs which pairs the skipped update had."""
        setup, size = self.setup, self.setup.layout.size
        if self.metrics:
            values = {"skipped_steps": self.progress.skipped, "example": step * size, "count": size}
            self.metrics.write(step + 1, "skipped", values)
        if setup.facts["precision"] != "fp16" or self.progress.skipped_in_row > 1:  # else fp16 adapts its loss scale
            flags = f"--start {step * size} --count {size} --seed {setup.config.seed}"
            log.warning(
                "step %d: a loss or gradient was not finite, its update is skipped: kinspan show pairs %s", step, flags
            )

    def validate(self) -> None:
        """Logs the figures of the held-out pairs, and draws the curves."""
        setup, step, figures = self.setup, self.progress.step, None
        if setup.validation_stream is not None:
            measure = evaluate_retrieval if setup.config.pair_loss else evaluate
            stream, pairs = setup.validation_stream, setup.config.eval_pairs
            figures = measure(self.engine, stream, pairs, setup.layout, self.rank, self.weights)
        if self.metrics and figures:
            self.metrics.write(step, "validation", figures)
        if self.metrics and (step == self.schedule.total or time.monotonic() >= self.curve_due):
            self.draw_curve()

    def draw_curve(self) -> None:
        """Draws the curves of the log; training continues if they cannot be written."""
        try:
            if draw_curve(read_metrics(self.setup.folder), PRETRAINING_PANELS, self.setup.folder / CURVE):
                self.curve_due = time.monotonic() + CURVE_SECONDS
        except OSError as error:
            log.warning("%s cannot be written: %s", self.setup.folder / CURVE, error.strerror)

    def summarise(self) -> JsonObject:
        """Writes summary.json, which shows that the run is complete, and returns its content on rank 0."""
        setup, progress = self.setup, self.progress
        if self.rank:
            return {}
        summary: JsonObject = {
            "steps": progress.step,
            "tokens": progress.tokens,
            "pairs": progress.step * setup.layout.size,
            "skipped_steps": progress.skipped,
        }
        ends = find_ends(read_metrics(setup.folder))
        for split, name in (("train", "losses"), ("validation", "validation")):
            summary[f"first_{name}"], summary[f"last_{name}"] = ends.get(split, (None, None))
        validation = {name: list(filter(None, [summary[name]])) for name in ("first_validation", "last_validation")}
        warnings = find_warnings(setup.facts | validation)
        summary |= {
            "warnings": warnings,
            "history": setup.facts.get("history", []),
            "wall_seconds": round(progress.wall_seconds, 1),
            "world_size": setup.layout.world,
            "corpus_fingerprint": setup.facts["corpus"]["fingerprint"],
            "model": setup.facts["model"],
            "versions": list_versions(),
            "config": as_dict(setup.config),
            "deepspeed": setup.deepspeed_settings,
        }
        write_atomically(setup.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        if warnings:
            log.warning("done, but %s: %s", "; ".join(warnings), setup.folder / SUMMARY)
        else:
            log.info("done: %s", setup.folder / SUMMARY)
        return summary


def log_start(setup: Setup, module: torch.nn.Module) -> None:
    """Logs model, batches and length of the run. ``module``: the engine's, whose parameters may be sharded"""
    layout, stream, facts = setup.layout, setup.train_stream, setup.facts
    parameters = sum(int(getattr(p, "ds_numel", p.numel())) for p in module.parameters()) / 1e6
    with_generator = " with its generator" if facts["token_loss"] == "rtd" else ""
    name, precision, stage = facts["model"]["name"], facts["precision"], facts["zero_stage"]
    log.info("%s%s: %.1f M parameters, %s, ZeRO %d", name, with_generator, parameters, precision, stage)
    batches = layout.size, name_device(), layout.world, layout.accumulation, layout.largest
    log.info("%d pairs per step: on %s, %d rank(s) x %d micro-batch(es) of about %d", *batches)
    epochs = setup.schedule.total * layout.size / stream.epoch_pairs
    log.info("%d steps (%.2f epochs), pairs of at most %d tokens", setup.schedule.total, epochs, stream.max_length)
    if torch.cuda.is_available() and (tokens := layout.largest * average_tokens(stream)) < FEW_TOKENS:
        flag = "--micro_batch_size" if layout.accumulation > 1 else "--global_batch_size"
        log.warning("%s: %d tokens a micro-batch; below %d a GPU waits for the host", flag, tokens, FEW_TOKENS)


def make_profiler(num_steps: int, folder: Path) -> profile:
    """Returns torch's profiler, which after ``num_steps`` steps writes the trace and logs the slowest operators."""
    gpu = torch.cuda.is_available()

    def finish(profiler: profile) -> None:
        order = "self_cuda_time_total" if gpu else "self_cpu_time_total"
        log.info("%s", profiler.key_averages().table(sort_by=order, row_limit=TRACE_ROWS))
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
