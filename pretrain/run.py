"""A pre-training run, from settings to summary.json."""

import atexit
import json
import math
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from data_pipeline.errors import KinspanError

from . import checkpoint
from .batches import Feeder
from .config import PretrainConfig, as_dict
from .engine import build_engine, set_learning_rate
from .evaluate import evaluate
from .metrics import FlopCounter, Log, figures, padding_share, peak_tflops, summed
from .release import write_release
from .schedule import learning_rate
from .setup_run import Setup, set_up
from .step import StepResult, is_out_of_memory, out_of_memory_text, train_step, try_largest
from .sums import LossWeights

Probe = Callable[[Path], dict[str, float]]  # figures of a release
PACKAGES = ("kinspan", "torch", "deepspeed", "transformers", "tokenizers", "numpy", "pyarrow")


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint keeps beside DeepSpeed's state.

    window: the model's sums (see sums.py) since the last line of the log; on resume rank 0 has them all
    """

    step: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    world_size: int = 1
    window: list[float] = field(default_factory=list)


def pretrain(config: PretrainConfig, probe: Probe | None = None) -> dict[str, Any]:
    """Runs, or goes on with, the pre-training that ``config`` describes, and returns its summary.

    probe: measures the model every ``config.probe_steps``, on rank 0; finetune.probe.make_probe makes it

    Run by every rank. Raises KinspanError for what the user can mend.
    """
    setup = set_up(config)
    if config.probe and probe is None and setup.rank == 0:
        raise KinspanError(f"--probe {config.probe}: give pretrain(config, probe) that of finetune.probe.make_probe")
    try:
        summary = _Run(setup, probe).run()
    except Exception as error:
        if is_out_of_memory(error):
            raise KinspanError(out_of_memory_text(setup.layout.largest, setup.train.max_length)) from error
        raise
    _leave_at_exit()  # not after an error: the other ranks may be waiting for this one
    return summary


@cache
def _leave_at_exit() -> None:
    """Leaves the process group when the program ends, not before: a second run in it finds the groups in place."""
    atexit.register(dist.destroy_process_group)


class _Run:
    def __init__(self, setup: Setup, probe: Probe | None) -> None:
        self.setup, self.config, self.probe = setup, setup.config, probe
        self.weights = LossWeights(self.config.mlm_weight, self.config.pair_weight, self.config.rtd_weight)
        self.checkpoints = setup.folder / "checkpoints"
        self.names = setup.model.sum_names
        self.progress = Progress(world_size=setup.layout.world, window=[0.0] * len(self.names))
        self.log: Log | None = None

    def run(self) -> dict[str, Any]:
        found, skipped = checkpoint.agreed_newest(self.checkpoints)
        self.say(*self.setup.notes, *(f"skipped a checkpoint that is not whole: {line}" for line in skipped))
        summary = self.setup.folder / "summary.json"
        if found and summary.exists() and int(found.name[5:]) >= self.setup.total_steps:
            self.say(f"this run is complete: see {summary}")
            return json.loads(summary.read_text()) if self.setup.rank == 0 else {}
        self.flops = FlopCounter(self.setup.model)
        self.engine = build_engine(self.setup.model, self.config, self.setup.settings)
        if found:
            self.progress = Progress(**checkpoint.load(self.engine, found, self.setup.layout.world))
            self.say(f"resuming from {found} at step {self.progress.step}")
        try_largest(self.engine, self.setup.train, self.setup.layout)
        self.describe()
        if self.setup.rank == 0:
            (self.setup.folder / "config.yaml").write_text(yaml.safe_dump(as_dict(self.config), sort_keys=False))
            self.log = Log(self.setup.folder, self.progress.step, self.setup.total_steps)
        setup = self.setup
        feeder = Feeder(setup.train, setup.layout, setup.rank, self.progress.step, self.config.num_workers)
        try:
            self.loop(feeder)
        finally:
            feeder.close()
            if self.log:
                self.log.close()
        return self.finish()

    def loop(self, feeder: Feeder) -> None:
        """Evaluate, probe, save, stop?, step, log: in this order, once a step."""
        config, progress, total = self.config, self.progress, self.setup.total_steps
        filler = self.setup.train.batch(0, 1)
        resumed_at = progress.step if progress.step else None
        window = torch.tensor(progress.window, dtype=torch.float64, device=self.engine.device)
        if self.setup.rank:
            window.zero_()
        clock = _Clock()
        while True:
            step, began = progress.step, time.monotonic()
            if step != resumed_at:  # the checkpoint was written after these
                if step % config.eval_steps == 0 or step == total:
                    self.evaluate()
                if config.probe and (step % config.probe_steps == 0 or step == total):
                    self.measure()
                if step and (step % config.save_steps == 0 or step == total):
                    window = self.save(window)
            if config.release_every and step and step % config.release_every == 0:
                self.release()
            if step >= total:
                break
            rate = learning_rate(step, config.learning_rate, self.setup.warmup_steps, total)
            set_learning_rate(self.engine, rate)
            clock.start()
            batches = feeder.next()
            result = train_step(
                self.engine,
                batches,
                filler,
                self.setup.layout,
                self.setup.rank,
                config.seed,
                step,
                self.weights,
            )
            window += result.stats
            progress.step, progress.tokens = step + 1, progress.tokens + result.tokens
            clock.stop(result, sum(self.flops(b) for b in batches if b), [self.padding(b) for b in batches if b])
            if self.log:
                self.log.step()
            if progress.step % config.log_steps == 0 or progress.step == total:
                self.write_log(window, clock, rate, result, feeder)
                window = torch.zeros_like(window)
            progress.wall_seconds += time.monotonic() - began

    def padding(self, batch: Any) -> tuple[int, int]:
        half_on_gpu = self.engine.device.type == "cuda" and self.setup.facts["precision"] != "fp32"
        return padding_share(batch, jagged=half_on_gpu and self.setup.model.family.packed)

    def evaluate(self) -> None:
        stream = self.setup.validation
        if stream is None:
            return
        layout = self.setup.layout
        values = evaluate(
            self.engine,
            stream,
            self.config.eval_pairs,
            self.config.micro_batch_size,
            self.setup.rank,
            layout.world,
            self.weights,
        )
        if self.log:
            self.log.write(self.progress.step, "validation", values)

    def measure(self) -> None:
        """Hands rank 0's probe a release of this step, to be gone after; the other ranks wait.

        The run goes on as if nothing had been: dropout is seeded anew for each micro-batch.
        """
        weights = checkpoint.full_weights(self.engine)
        if self.probe and self.log:
            folder = self.setup.folder / "probe"
            write_release(self.setup.folder, weights, self.progress.step, folder)
            del weights
            values = self.probe(folder)
            shutil.rmtree(folder)
            self.log.write(self.progress.step, "probe", values)
        checkpoint.barrier()

    def save(self, window: torch.Tensor) -> torch.Tensor:
        """Checkpoints, and returns the log's window as a resumed run would find it."""
        sums = summed(window, self.names)
        self.check_finite(sums)
        self.progress.window = list(sums.values())
        config = self.config
        checkpoint.save(self.engine, asdict(self.progress), self.checkpoints, config.keep_checkpoints, self.setup.rank)
        total = torch.tensor(self.progress.window, dtype=torch.float64, device=window.device)
        return total if self.setup.rank == 0 else torch.zeros_like(window)

    def release(self) -> None:
        """Writes a release, unless one of this step is there: a resumed run comes by again."""
        folder = self.setup.folder / "releases" / f"step-{self.progress.step:08d}"
        weights = checkpoint.full_weights(self.engine)
        if self.setup.rank == 0 and not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            write_release(self.setup.folder, weights, self.progress.step, folder)
            self.say(f"released {folder}")
        checkpoint.barrier()

    def check_finite(self, sums: dict[str, float]) -> None:
        """Stops a run whose loss is no number; in fp16 DeepSpeed skips such steps itself and lowers its scale."""
        if self.setup.facts["precision"] != "fp16" and not all(map(math.isfinite, sums.values())):
            raise KinspanError(
                f"the loss is not finite at step {self.progress.step}: lower --learning_rate (now "
                f"{self.config.learning_rate}), lengthen --warmup_steps, or use --precision fp32, with another "
                "--output_dir"
            )

    def write_log(self, window: torch.Tensor, clock: "_Clock", rate: float, result: StepResult, feeder: Feeder) -> None:
        sums = summed(window, self.names)
        self.check_finite(sums)
        values = figures(sums, self.weights)
        values |= {"learning_rate": rate, "tokens": self.progress.tokens}
        if result.grad_norm is not None:
            values["grad_norm"] = float(result.grad_norm)
        values |= clock.read(feeder, peak_tflops(self.config.peak_tflops, self.setup.facts["precision"]))
        if self.log:
            self.log.write(self.progress.step, "train", values)

    def describe(self) -> None:
        setup, layout = self.setup, self.setup.layout
        parameters = sum(int(getattr(p, "ds_numel", p.numel())) for p in self.engine.module.parameters())
        and_generator = " and its generator" if setup.facts["token_loss"] == "rtd" else ""
        epochs = setup.total_steps * layout.size / setup.train.epoch_pairs
        self.say(
            f"{setup.facts['model']['name']}{and_generator}: {parameters / 1e6:.1f} M parameters, "
            f"{setup.facts['precision']}, ZeRO {setup.facts['zero_stage']}, {layout.world} rank(s) x "
            f"{layout.accumulation} micro-batch(es) of up to {layout.micro} pairs = {layout.size} pairs a step",
            f"{setup.total_steps} steps of {setup.train.epoch_pairs / layout.size:,.0f} in an epoch ({epochs:.2f} "
            f"epochs), pairs of at most {setup.train.max_length} tokens",
            f"watch it: tensorboard --logdir {setup.folder / 'tensorboard'}",
        )

    def finish(self) -> dict[str, Any]:
        """Writes summary.json, last of all."""
        if self.setup.rank != 0:
            return {}
        lines = [json.loads(line) for line in (self.setup.folder / "metrics.jsonl").read_text().splitlines()]
        train = [line for line in lines if line["split"] == "train"]
        validation = [line for line in lines if line["split"] == "validation"]
        probes = [line for line in lines if line["split"] == "probe"]
        settings = self.setup.settings
        summary = {
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "pairs": self.progress.step * self.setup.layout.size,
            "first_losses": train[0] if train else None,
            "last_losses": train[-1] if train else None,
            "first_validation": validation[0] if validation else None,
            "last_validation": validation[-1] if validation else None,
            "first_probe": probes[0] if probes else None,
            "last_probe": probes[-1] if probes else None,
            "wall_seconds": round(self.progress.wall_seconds, 1),
            "world_size": self.setup.layout.world,
            "corpus_fingerprint": self.setup.corpus.manifest.fingerprint,
            "model": self.setup.facts["model"],
            "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
            "config": as_dict(self.config),
            "deepspeed": settings,
        }
        path = self.setup.folder / "summary.json"
        checkpoint.write_atomically(path, json.dumps(summary, indent=1) + "\n")
        self.say(f"done: {path}")
        return summary

    def say(self, *lines: str) -> None:
        if self.setup.rank == 0:
            for line in lines:
                self.log.say(line) if self.log else print(line, flush=True)


class _Clock:
    """Time and work of the training steps since the last line of the log; validation and saving do not count."""

    def __init__(self) -> None:
        self.seconds = self.flops = 0.0
        self.tokens = self.padding = self.slots = 0
        self.waited = 0.0

    def start(self) -> None:
        self.began = time.perf_counter()

    def stop(self, result: StepResult, flops: float, padding: list[tuple[int, int]]) -> None:
        self.seconds += time.perf_counter() - self.began
        self.flops += flops
        self.tokens += result.tokens
        self.padding += sum(p for p, _ in padding)
        self.slots += sum(s for _, s in padding)

    def read(self, feeder: Feeder, peak: float | None) -> dict[str, float]:
        """tokens_per_second of all ranks; mfu_percent of this rank's device; then starts afresh."""
        values = {
            "tokens_per_second": self.tokens / self.seconds,
            "padding_percent": 100 * self.padding / max(self.slots, 1),
            "data_wait_percent": 100 * (feeder.waited - self.waited) / self.seconds,
        }
        if peak:
            values["mfu_percent"] = 100 * self.flops / self.seconds / (peak * 1e12)
        waited = feeder.waited
        self.__init__()  # type: ignore[misc]
        self.waited = waited
        return values
