"""The log of a run: metrics.jsonl, TensorBoard, a line on the screen, and Weights & Biases if asked."""

import json
import logging
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger(__name__)
METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"
MIN_DOCUMENTS = 20  # held-out documents; with fewer, figures are unreliable
MAX_STEP = 1 << 53  # a line with a larger step is damaged
WANDB_ID = "wandb_id"  # file in the run's folder
WANDB_SECONDS = 20  # seconds to wait for W&B at the end: launchers kill a run 30 s after a signal


class Log:
    """Writes metrics.jsonl, TensorBoard and the screen. Only rank 0 has one.

    A resumed run removes the lines after its checkpoint, so that each step is logged once, and TensorBoard forgets its
    figures from the checkpoint on. If the log cannot be written, training continues, and the lines are kept and written
    with the next ones.

    first_step: the step of the checkpoint that the run resumes from, or 0
    undone:     splits whose lines of ``first_step`` itself are removed too, because they will be written again
    """

    def __init__(
        self,
        folder: Path,
        first_step: int,
        total_steps: int,
        task: str = "pre-training",
        undone: tuple[str, ...] = (),
        board: "WandbBoard | None" = None,
    ) -> None:
        self.path = folder / METRICS
        damaged = 0
        if self.path.exists():
            with self.path.open("rb") as file:
                damaged = sum(line.endswith(b"\n") for line in file) - sum(1 for _ in _read_lines(self.path))
        cut_log(self.path, first_step, undone)
        self.unwritten = ""  # lines that are not yet in metrics.jsonl
        self.tensorboard: SummaryWriter | None = None
        self.board = board
        self.first_step, self.total_steps, self.began = first_step, total_steps, time.monotonic()
        self.bar = tqdm(total=total_steps, initial=first_step, unit=" steps", desc=task, disable=None)
        if damaged:
            log.warning("%s: %d damaged line(s) left out", self.path, damaged)

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Logs the figures of one split ("train", "validation", ...) after ``step`` updates."""
        line = {"step": step, "split": split, **values}
        self.unwritten += json.dumps(line) + "\n"
        try:
            self._write_lines()
            self._write_tensorboard(line)
        except OSError as error:
            log.warning("%s cannot be written (%s): training goes on", self.path, error.strerror or error)
        if self.board:
            self.board.write(step, split, values)
        parts = [template.format(values[name]) for name, template in FORMATS.items() if name in values]
        seconds, num_steps = time.monotonic() - self.began, step - self.first_step
        if split == "train" and num_steps > 0 and seconds:
            parts.append(f"{num_steps / seconds:.3g} steps/s")
            parts.append(f"{format_time((self.total_steps - step) * seconds / num_steps)} left")
        log.info("step %d/%d  %-10s %s", step, self.total_steps, split, "  ".join(parts))

    def _write_lines(self) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(self.unwritten)
        except OSError:
            os.truncate(self.path, size)  # leave no half line behind
            raise
        self.unwritten = ""

    def _write_tensorboard(self, line: JsonObject) -> None:
        lines = [line]
        if self.tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter

            folder = self.path.parent / TENSORBOARD
            first = self.first_step if folder.exists() else 0
            self.tensorboard = SummaryWriter(str(folder), purge_step=first)
            lines = [entry for entry in read_metrics(self.path.parent) if entry["step"] >= first]
        try:
            for figures in lines:
                for name, value in figures.items():
                    if name != "step" and isinstance(value, int | float):
                        self.tensorboard.add_scalar(f"{name}/{figures['split']}", value, figures["step"])
            self.tensorboard.flush()
        except OSError:
            self.tensorboard = None  # its thread has ended: the next line needs a new writer
            raise

    def close(self) -> None:
        """Writes the lines that could not be written before, if possible."""
        if self.unwritten:
            try:
                self._write_lines()
            except OSError as error:
                log.warning("the last lines of %s cannot be written (%s)", self.path, error.strerror or error)
        self.bar.close()
        if self.tensorboard:
            self.tensorboard.close()
        if self.board:
            self.board.close()


def cut_log(path: Path, step: int, undone: tuple[str, ...] = ()) -> None:
    """Removes the lines after a step from a metrics.jsonl, and those of this step whose split is in ``undone``."""

    def is_kept(line: JsonObject) -> bool:
        return 0 < step >= line["step"] and not (line["step"] == step and line["split"] in undone)

    write_atomically(path, (line for line, entry in _read_lines(path) if is_kept(entry)))


# The figures on the screen, those that change from the first steps on first. Pair accuracy and F1 are in metrics.jsonl
# alone: for long they stay at the values of always predicting "negative", while the AUC already grows.
FORMATS = {
    "loss": "loss {:.3f}",
    "pair_auc": "AUC {:.3f}",
    "pair_mrr": "MRR {:.3f}",
    "pair_loss": "pair {:.4f}",
    "mlm_loss": "mlm {:.3f}",
    "mlm_accuracy": "mlm acc {:.3f}",
    "rtd_loss": "rtd {:.4f}",
    "rtd_recall": "recall {:.3f}",
    "map": "MAP {:.4f}",
    "mrr": "MRR {:.4f}",
    "p@1": "P@1 {:.4f}",
    "learning_rate": "lr {:.1e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "pairs_per_second": "{:,.0f} pairs/s",
    "data_wait_percent": "wait {:.1f}%",
}


def format_time(seconds: float) -> str:
    """Formats a duration as "40 s", "12 min" or "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def read_metrics(folder: Path) -> Iterator[JsonObject]:
    """Yields the undamaged lines of a run's metrics.jsonl, parsed."""
    return (entry for _, entry in _read_lines(folder / METRICS))


def find_ends(lines: Iterable[JsonObject]) -> dict[str, list[JsonObject]]:
    """Returns the first and the last line of each split."""
    ends: dict[str, list[JsonObject]] = {}
    for line in lines:
        ends.setdefault(line["split"], [line, line])[1] = line
    return ends


def _read_lines(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Yields each undamaged line as text and parsed. A killed run may have left half a line at the end."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                entry = json.loads(text := line.decode("utf-8"))  # json.loads would also decode invalid UTF-8
                is_valid = isinstance(entry["step"], int) and 0 <= entry["step"] <= MAX_STEP
                if text.endswith("\n") and is_valid and isinstance(entry["split"], str):
                    yield text, entry


def find_warnings(facts: JsonObject) -> list[str]:
    """Returns reasons not to trust the model or its figures, as clauses without a full stop.

    facts: from run.json, with the first and the last validation, each in a list, or empty lists
    """
    warnings = []
    has_pairs = facts["settings"].get("pair_weight")
    changed = {name for change in facts.get("history", ()) for name in change["settings"]}
    is_one_loss = not changed & {"mlm_weight", "rtd_weight", "pair_weight"}
    for first, last in zip(facts["first_validation"], facts["last_validation"], strict=True):
        if is_one_loss and first["step"] < last["step"] and not last["loss"] < first["loss"]:
            warnings.append(f"the held-out loss did not fall: {first['loss']:.4g} before, {last['loss']:.4g} after")
        share, pairs = last.get("share_positive", 0.5), facts["eval_pairs"] or 1
        deviation = math.sqrt((pairs + 1) / (12 * share * (1 - share) or 1)) / pairs  # of a guess's AUC
        if has_pairs and last["step"] and last.get("pair_auc", math.inf) < 0.5 + 2 * deviation:
            warnings.append(f"the AUC of held-out pairs, {last['pair_auc']:.3f}, is that of a guess")
        if has_pairs and last["step"] and share < 1 and last.get("pair_accuracy_positive") == 0:
            warnings.append("the pair head calls no held-out pair positive: its accuracy is the share of negatives")
        documents = facts.get("validation_documents")
        if documents is not None and documents < MIN_DOCUMENTS:
            warnings.append(f"the figures rest on {documents} held-out documents, below {MIN_DOCUMENTS}")
    return warnings


class WandbBoard:
    """Logs to one run in Weights & Biases, also after restarts. If W&B fails later, training continues."""

    def __init__(self, folder: Path, project: str, settings: Mapping[str, Any]) -> None:
        try:
            import wandb

            if not (folder / WANDB_ID).exists():
                write_atomically(folder / WANDB_ID, secrets.token_hex(4))
            self.run: Any = wandb.init(
                project=project,
                id=(folder / WANDB_ID).read_text(),
                resume="allow",
                name=folder.name,
                dir=str(folder),
                config=dict(settings),
                settings=wandb.Settings(console="off", silent=True, login_timeout=60, finish_timeout=WANDB_SECONDS),
            )
            self.run.define_metric("step")  # W&B's own step counter cannot go back
            self.run.define_metric("*", step_metric="step")
        except Exception as error:  # wandb does not export all of its exceptions
            raise KinspanError(f"--wandb {project}: Weights & Biases cannot be used: {quote_error(error)}") from error

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Sends the figures of a split after ``step`` updates; a step repeated after a restart has the same figures."""
        try:
            self.run.log({"step": step, **{f"{split}/{name}": value for name, value in values.items()}})
        except Exception as error:
            log.warning("step %d cannot be sent to Weights & Biases (%s): training goes on", step, quote_error(error))

    def close(self) -> None:
        """Waits up to WANDB_SECONDS for W&B to send all figures; it keeps the others in the run's folder."""
        try:
            self.run.finish()
        except Exception as error:
            log.warning("Weights & Biases did not receive all figures: %s", quote_error(error))
