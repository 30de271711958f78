"""One run of fine-tuning: from a checkpoint and a training set to the ranker that is best on the dev set."""

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.ranking.encode import EncodedPairs, encode_pairs
from finetune.ranking.ranker import check_takes, load_own_tokenizer, load_ranker, save_ranker
from finetune.ranking.score import score_pairs
from finetune.training import losses
from pretrain.checkpoints.capture import full_weights
from pretrain.checkpoints.elastic import convert_to_universal
from pretrain.checkpoints.reader import load_checkpoint, newest_on_all_ranks
from pretrain.checkpoints.writer import Writer
from pretrain.runtime.dropout import dropout_seed
from pretrain.runtime.engine import set_learning_rate
from pretrain.runtime.layout import Layout
from pretrain.runtime.log import Log
from pretrain.runtime.out_of_memory import is_out_of_memory
from pretrain.runtime.ranks import barrier, sum_by_name
from pretrain.runtime.schedule import learning_rate_of

from .config import FinetuneConfig
from .engine import make_engine
from .groups import Groups, lists_of_epoch, pairs_of_epoch

BEST = "best"  # folder of the run: the ranker that was best on the dev set
SUMMARY = "summary.json"
RUN = "run.json"  # what makes it this run


@dataclass(frozen=True)
class Stage:
    """What a run is made of, beside the settings that all its stages share.

    what:                    "fine-tuning", "transfer" or "adaptation", for the screen
    model:                   where it starts
    train, dev, test:        filtered; test is measured at each validation, if given
    eval_steps, max_steps, negatives_per_positive: as in FinetuneConfig
    identity:                what makes it this run: another output folder is refused
    """

    what: str
    model: str
    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet | None
    learning_rate: float
    epochs: int
    max_steps: int | None
    eval_steps: int | None
    negatives_per_positive: float | None
    identity: dict[str, Any]
    batch_size: int | None = None  # where it is not the settings'


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint keeps beside the engine's state."""

    step: int = 0
    best_step: int = -1
    best_map: float = -1.0
    not_improved: int = 0  # validations in a row
    wall_seconds: float = 0.0
    world_size: int = 1


@dataclass(frozen=True)
class Ranks:
    """This process among the others; ``deepspeed`` None: torch alone."""

    rank: int = 0
    world: int = 1
    deepspeed: dict[str, Any] | None = None


def train_ranker(config: FinetuneConfig, stage: Stage, seed: int, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Runs, or goes on with, one run in ``folder``; its summary. The best ranker lies in ``folder/best``.

    Run by every rank. Raises KinspanError for what the user can mend.
    """
    summary, identity = folder / SUMMARY, {**stage.identity, "seed": seed}
    refuse_other(folder, identity)
    barrier()
    if summary.is_file():
        return read_object(summary, f"delete it to train {folder} again")
    try:
        run = _Run(config, stage, seed, folder, ranks)
        claim(folder, identity, ranks.rank)  # a model that cannot be loaded leaves the folder free
        return run.run()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise KinspanError(
            f"out of memory with {config.micro_batch_size} pairs of {config.max_length} tokens: lower "
            "--micro_batch_size (the batch stays), with another --output_dir"
        ) from error


class _Run:
    def __init__(self, config: FinetuneConfig, stage: Stage, seed: int, folder: Path, ranks: Ranks) -> None:
        self.config, self.stage, self.seed, self.folder, self.ranks = config, stage, seed, folder, ranks
        share = float(stage.train.labels.mean())
        if config.loss == "pointwise" and stage.negatives_per_positive is not None:
            share = max(share, 1 / (1 + stage.negatives_per_positive))
        fresh = config.fresh_head and stage.model == config.model  # what a transfer has learned is kept
        self.ranker, self.notes = load_ranker(stage.model, seed, min(max(share, 0.01), 0.99), fresh)
        self.tokenizer = load_own_tokenizer(stage.model)
        check_takes(self.ranker, self.tokenizer, stage.model, config.max_length)
        self.train, self.dev, self.test = (
            encode_pairs(data, self.tokenizer, config.max_length) if data else None
            for data in (stage.train, stage.dev, stage.test)
        )
        self.plan = plan(config, stage, seed)
        micro = max(1, min(self.plan.groups, config.micro_batch_size // pairs_of_a_group(config)))
        self.layout = Layout(self.plan.groups, micro, ranks.world)
        self.epoch_steps, self.total, self.warmup = self.plan.epoch_steps, self.plan.total, self.plan.warmup
        self.eval_steps = stage.eval_steps or self.epoch_steps
        self.progress = Progress(world_size=ranks.world)
        self.log: Log | None = None

    def run(self) -> dict[str, Any]:
        checkpoints = self.folder / "checkpoints"
        found, skipped = newest_on_all_ranks(checkpoints)
        world, rank = self.ranks.world, self.ranks.rank
        universal = convert_to_universal(found, world, rank) if found else None
        self.engine, self.precision = make_engine(self.ranker, self.config, self.layout, self.ranks.deepspeed)
        if found:
            self.progress = Progress(**load_checkpoint(self.engine, found, world, universal))
        if self.ranks.rank == 0:
            self.log = Log(self.folder, self.progress.step, self.total, f"{self.stage.what}, seed {self.seed}")
            for line in (*self.notes, *(f"skipped a checkpoint that is not whole: {line}" for line in skipped)):
                self.log.say(line)
            if found:
                self.log.say(f"resuming from {found} at step {self.progress.step}")
        # Sum of the loss and number of groups since the last validation, after which checkpoints are written
        self.window = torch.zeros(2, dtype=torch.float64, device=self.engine.device)
        try:
            self.loop(checkpoints, self.progress.step if found else None)
        finally:
            if self.log:
                self.log.close()
        return self.finish(checkpoints)

    def loop(self, checkpoints: Path, resumed_at: int | None) -> None:
        """Validate, save, stop?, step: in this order, once a step."""
        progress, writer = self.progress, Writer(checkpoints, self.ranks.rank, tell=self.say)
        groups, epoch = self.groups_of(0), 0
        while True:
            step, began = progress.step, time.monotonic()
            if step != resumed_at and (step % self.eval_steps == 0 or step == self.total):
                self.validate()
                if step:  # the start needs no checkpoint
                    writer.save(self.engine, asdict(progress))
            if step == progress.best_step:  # after the checkpoint, from which a killed run then writes it anew
                self.keep_best()
            if step >= self.total or progress.not_improved > self.config.patience:
                break
            if step // self.epoch_steps != epoch:
                epoch = step // self.epoch_steps
                groups = self.groups_of(epoch)
            set_learning_rate(self.engine, learning_rate_of(step, self.stage.learning_rate, self.warmup, self.total))
            self.update(groups, step)
            progress.step += 1
            progress.wall_seconds += time.monotonic() - began
            if self.log:
                self.log.step()

    def say(self, line: str) -> None:
        if self.log:
            self.log.say(line)

    def groups_of(self, epoch: int) -> Groups:
        return groups_of_epoch(self.config, self.stage, self.seed, epoch)

    def update(self, groups: Groups, step: int) -> None:
        """One update; the last batch of an epoch may be smaller.

        The loss is its sum over the global batch divided by the groups in it, however it is cut: DeepSpeed divides
        by the micro-steps and averages over ranks, which the scale takes back.
        """
        layout, rank = self.layout, self.ranks.rank
        first = (step % self.epoch_steps) * layout.size
        count = min(layout.size, len(groups) - first)
        batch = groups.longest_first(first, count, self.train_pairs.lengths)
        scale = layout.world * layout.accumulation / count
        self.engine.module.train()
        for number, (a, b) in enumerate(self.micro_batches(count)):
            real = b > a  # an empty share stands in with a group at no weight, for collectives must match
            rows, group_of = groups.some(batch[a:b] if real else batch[-1:])
            torch.manual_seed(dropout_seed(self.seed, step, rank * layout.accumulation + number))
            logits = self.engine(**self.train_pairs.pack(rows, self.engine.device))
            loss = self.loss(logits, rows, group_of)
            self.engine.backward(loss * (scale if real else 0.0))
            self.engine.step()
            if real:
                self.window += torch.stack([loss.detach().double(), self.window.new_tensor(b - a)])

    def micro_batches(self, count: int) -> list[tuple[int, int]]:
        """This rank's micro-batches of ``count`` groups, as many as of a full batch; some may be empty."""
        layout, rank = self.layout, self.ranks.rank
        start, end = rank * count // layout.world, (rank + 1) * count // layout.world
        cuts = [start + (end - start) * k // layout.accumulation for k in range(layout.accumulation + 1)]
        return list(pairwise(cuts))

    @property
    def train_pairs(self) -> EncodedPairs:
        assert self.train is not None
        return self.train

    def loss(self, logits: torch.Tensor, rows: np.ndarray, group_of: np.ndarray) -> torch.Tensor:
        function = getattr(losses, self.config.loss)
        if self.config.loss == "pointwise":
            function = partial(function, positive_weight=self.config.positive_weight)
        labels = torch.from_numpy(self.stage.train.labels[rows].astype(np.int64)).to(logits.device)
        return function(logits.float(), labels, torch.from_numpy(group_of).to(logits.device))

    def validate(self) -> None:
        """Measures the dev set, and notes whether the ranker is the best so far."""
        progress, stage = self.progress, self.stage
        assert self.dev is not None
        loss, count = sum_by_name(self.window, ("loss", "groups")).values()
        self.window.zero_()
        self.check_finite(loss)
        figures = self.measure(stage.dev, self.dev)
        if figures[MAP] > progress.best_map:
            progress.best_step, progress.best_map, progress.not_improved = progress.step, figures[MAP], 0
        else:
            progress.not_improved += 1
        if self.log:
            epoch = {"epoch": progress.step / self.epoch_steps}
            if count:
                self.log.write(progress.step, "train", {"loss": loss / count, **epoch})
            self.log.write(progress.step, "dev", {**figures, **epoch})
        if stage.test is not None and self.test is not None:
            figures = self.measure(stage.test, self.test)
            if self.log:
                self.log.write(progress.step, "test", {**figures, "epoch": progress.step / self.epoch_steps})

    def measure(self, data: AnswerSet, pairs: EncodedPairs) -> dict[str, float]:
        self.engine.module.eval()
        ranker = self.engine.module if self.ranks.deepspeed is None else self.engine
        return compute_means(compute_question_metrics(data, score_pairs(ranker, pairs, self.engine.device)))

    def check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise KinspanError(
                f"the loss is not finite at step {self.progress.step}: lower the learning rate (now "
                f"{self.stage.learning_rate}) or use --precision fp32, with another --output_dir"
            )

    def keep_best(self) -> None:
        weights = full_weights(self.engine)
        if self.ranks.rank == 0:
            best = self.folder / BEST
            partial_folder = best.with_name(BEST + ".tmp")
            shutil.rmtree(partial_folder, ignore_errors=True)
            save_ranker(self.ranker.classifier.config, self.tokenizer, weights, partial_folder)
            shutil.rmtree(best, ignore_errors=True)
            partial_folder.replace(best)
        barrier()

    def finish(self, checkpoints: Path) -> dict[str, Any]:
        """Writes summary.json, last of all; the checkpoints are then of no use."""
        progress = self.progress
        stopped = "early" if progress.not_improved > self.config.patience else "at the last epoch"
        summary = {
            "steps": progress.step,
            "epoch_steps": self.epoch_steps,
            "best_step": progress.best_step,
            "dev_map": progress.best_map,
            "stopped": stopped,
            "precision": self.precision,
            "wall_seconds": round(progress.wall_seconds, 1),
        }
        if self.ranks.rank == 0:
            write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
            shutil.rmtree(checkpoints, ignore_errors=True)
        barrier()
        return summary


@dataclass(frozen=True)
class Plan:
    """How long a stage is. groups: in one update, over all ranks; epoch_steps, total, warmup: updates."""

    groups: int
    epoch_steps: int
    total: int
    warmup: int


def plan(config: FinetuneConfig, stage: Stage, seed: int) -> Plan:
    """Raises KinspanError where the stage is shorter than its warm-up, or the loss finds no groups in its data."""
    groups = max(1, (stage.batch_size or config.batch_size) // pairs_of_a_group(config))
    epoch_steps = math.ceil(len(groups_of_epoch(config, stage, seed, 0)) / groups)
    total = min(stage.epochs * epoch_steps, stage.max_steps or stage.epochs * epoch_steps)
    warmup = int(config.warmup_share * total) if config.warmup_steps is None else config.warmup_steps
    if warmup >= total and total:
        raise KinspanError(f"--warmup_steps {warmup} is not below the {total} steps of the {stage.what}: lower it")
    return Plan(groups, epoch_steps, total, warmup)


def pairs_of_a_group(config: FinetuneConfig) -> int:
    return 1 if config.loss == "pointwise" else config.list_size


def groups_of_epoch(config: FinetuneConfig, stage: Stage, seed: int, epoch: int) -> Groups:
    if config.loss == "pointwise":
        return pairs_of_epoch(stage.train, seed, epoch, stage.negatives_per_positive)
    return lists_of_epoch(stage.train, seed, epoch, config.list_size)


def refuse_other(folder: Path, identity: dict[str, Any]) -> None:
    """Raises KinspanError where the folder holds another run, or no run but something else."""
    path = folder / RUN
    if not path.is_file():
        if folder.is_dir() and any(p.name != RUN + ".tmp" for p in folder.iterdir()):
            raise KinspanError(f"{folder} is not empty and holds no run: choose another --output_dir")
        return
    theirs = read_object(path, "choose another --output_dir, or delete that folder")
    for key, ours in json.loads(json.dumps(identity)).items():
        if theirs.get(key) != ours:
            raise KinspanError(
                f"{folder} holds a different run: its {key} is {theirs.get(key)}, now it is {ours}; choose "
                "another --output_dir, or delete that folder"
            )


def claim(folder: Path, identity: dict[str, Any], rank: int) -> None:
    """Makes the folder this run's. Raises KinspanError where it cannot be written."""
    if rank == 0 and not (folder / RUN).is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / RUN, json.dumps(identity, indent=1) + "\n")
        except OSError as error:
            raise KinspanError(f"--output_dir: {folder} cannot be written: {error.strerror}") from error
    barrier()
