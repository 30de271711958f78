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
from pretrain import checkpoint
from pretrain.batches import Layout
from pretrain.engine import set_learning_rate
from pretrain.metrics import Log, summed
from pretrain.schedule import learning_rate
from pretrain.step import dropout_seed, is_out_of_memory

from . import losses
from .answers import AnswerSet
from .config import FinetuneConfig
from .encode import EncodedPairs, encode_pairs
from .engine import make_engine
from .groups import Groups, lists_of_epoch, pairs_of_epoch
from .metrics import MAP, means, question_metrics
from .ranker import load_own_tokenizer, load_ranker, save_ranker
from .score import score_pairs

BEST = "best"  # folder of the run: the ranker that was best on the dev set
SUMMARY = "summary.json"


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
    summary = folder / SUMMARY
    claim(folder, {**stage.identity, "seed": seed}, ranks.rank)
    if summary.is_file():
        return json.loads(summary.read_text())
    try:
        return _Run(config, stage, seed, folder, ranks).run()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise KinspanError(
            f"out of memory with {config.micro_batch_size} pairs of {config.max_length} tokens: lower "
            "--micro_batch_size (the batch stays)"
        ) from error


class _Run:
    def __init__(self, config: FinetuneConfig, stage: Stage, seed: int, folder: Path, ranks: Ranks) -> None:
        self.config, self.stage, self.seed, self.folder, self.ranks = config, stage, seed, folder, ranks
        self.tokenizer = load_own_tokenizer(stage.model)
        self.train, self.dev, self.test = (
            encode_pairs(data, self.tokenizer, config.max_length) if data else None
            for data in (stage.train, stage.dev, stage.test)
        )
        share = float(stage.train.labels.mean())
        if config.loss == "pointwise" and stage.negatives_per_positive is not None:
            share = max(share, 1 / (1 + stage.negatives_per_positive))
        self.ranker, self.notes = load_ranker(stage.model, seed, min(max(share, 0.01), 0.99), config.fresh_head)
        self.per_group = 1 if config.loss == "pointwise" else config.list_size  # pairs
        groups = max(1, config.batch_size // self.per_group)
        micro = max(1, min(groups, config.micro_batch_size // self.per_group))
        self.layout = Layout(groups, micro, ranks.world)
        self.epoch_steps = math.ceil(len(self.groups_of(0)) / groups)
        self.total = min(stage.epochs * self.epoch_steps, stage.max_steps or stage.epochs * self.epoch_steps)
        self.eval_steps = stage.eval_steps or self.epoch_steps
        self.warmup = int(config.warmup_share * self.total) if config.warmup_steps is None else config.warmup_steps
        if self.warmup >= self.total:
            raise KinspanError(f"--warmup_steps {self.warmup} is not below the {self.total} steps of the run: lower it")
        self.progress = Progress(world_size=ranks.world)
        self.log: Log | None = None

    def run(self) -> dict[str, Any]:
        checkpoints = self.folder / "checkpoints"
        found, skipped = checkpoint.agreed_newest(checkpoints)
        self.engine, self.precision = make_engine(self.ranker, self.config, self.layout, self.ranks.deepspeed)
        if found:
            self.progress = Progress(**checkpoint.load(self.engine, found, self.ranks.world))
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
        progress = self.progress
        groups, epoch = self.groups_of(0), 0
        while True:
            step, began = progress.step, time.monotonic()
            if step != resumed_at and (step % self.eval_steps == 0 or step == self.total):
                self.validate()
                checkpoint.save(self.engine, asdict(progress), checkpoints, 1, self.ranks.rank)
            if step >= self.total or progress.not_improved > self.config.patience:
                break
            if step // self.epoch_steps != epoch:
                epoch = step // self.epoch_steps
                groups = self.groups_of(epoch)
            set_learning_rate(self.engine, learning_rate(step, self.stage.learning_rate, self.warmup, self.total))
            self.update(groups, step)
            progress.step += 1
            progress.wall_seconds += time.monotonic() - began
            if self.log:
                self.log.step()

    def groups_of(self, epoch: int) -> Groups:
        config, train = self.config, self.stage.train
        if config.loss == "pointwise":
            return pairs_of_epoch(train, self.seed, epoch, self.stage.negatives_per_positive)
        return lists_of_epoch(train, self.seed, epoch, config.list_size)

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
        """Measures the dev set, and keeps the ranker if it is the best so far."""
        progress, stage = self.progress, self.stage
        assert self.dev is not None
        loss, count = summed(self.window, ("loss", "groups")).values()
        self.window.zero_()
        self.check_finite(loss)
        figures = self.measure(stage.dev, self.dev)
        if figures[MAP] > progress.best_map:
            progress.best_step, progress.best_map, progress.not_improved = progress.step, figures[MAP], 0
            self.keep_best()
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
        return means(question_metrics(data, score_pairs(ranker, pairs, self.engine.device)))

    def check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise KinspanError(
                f"the loss is not finite at step {self.progress.step}: lower the learning rate (now "
                f"{self.stage.learning_rate}) or use --precision fp32, with another --output_dir"
            )

    def keep_best(self) -> None:
        weights = checkpoint.full_weights(self.engine)
        if self.ranks.rank == 0:
            best = self.folder / BEST
            partial_folder = best.with_name(BEST + ".tmp")
            shutil.rmtree(partial_folder, ignore_errors=True)
            save_ranker(self.ranker.classifier.config, self.tokenizer, weights, partial_folder)
            shutil.rmtree(best, ignore_errors=True)
            partial_folder.replace(best)
        checkpoint.barrier()

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
            checkpoint.write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
            shutil.rmtree(checkpoints, ignore_errors=True)
        checkpoint.barrier()
        return summary


def claim(folder: Path, identity: dict[str, Any], rank: int) -> None:
    """Makes the folder this run's, or finds that it is already; refuses another run's."""
    path = folder / "run.json"
    ours = json.loads(json.dumps(identity))
    if path.is_file():
        try:
            theirs = json.loads(path.read_text())
        except ValueError as error:
            raise KinspanError(f"{path} is damaged: choose another --output_dir, or delete that folder") from error
        for key in ours:
            if theirs.get(key) != ours[key]:
                raise KinspanError(
                    f"{folder} holds a different run: its {key} is {theirs.get(key)}, now it is {ours[key]}; choose "
                    "another --output_dir, or delete that folder"
                )
    elif rank == 0:
        if folder.exists() and any(folder.iterdir()):
            raise KinspanError(f"{folder} is not empty and holds no run: choose another --output_dir")
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(path, json.dumps(ours, indent=1) + "\n")
    checkpoint.barrier()
