"""What a run reports: metrics.jsonl, TensorBoard, a line on the screen, and Weights & Biases if asked."""

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import write_atomically

log = logging.getLogger(__name__)
METRICS = "metrics.jsonl"
MOST_STEPS = 1 << 53  # that a sound file can hold
WANDB_ID = "wandb_id"  # file in the run's folder
WANDB_SECONDS = 20  # that the end of a run waits for W&B: launchers give 30 after a signal


class Log:
    """Writes metrics.jsonl, TensorBoard and the screen. Rank 0 alone has one.

    A resumed run removes the lines after its checkpoint, so that each step is logged once. Training goes on where the
    log cannot be written: lines of metrics.jsonl are kept and written with the next ones.

    first_step: that of the checkpoint, or 0
    undone:     splits whose lines of ``first_step`` itself are removed too, because they will be written again
    settings:   of the run, which TensorBoard shows as hyperparameters
    board:      gets every line, too
    """

    def __init__(
        self,
        folder: Path,
        first_step: int,
        total_steps: int,
        task: str = "pre-training",
        undone: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
        board: "WandbBoard | None" = None,
    ) -> None:
        from tqdm import tqdm

        self.path = folder / METRICS
        self.purge_step: int | None = first_step + (not undone)  # from there on TensorBoard hides what it had
        self.hidden: list[str] = []  # lines that hold, and that TensorBoard hides with others of the same step
        sound = complete_lines(self.path)
        damaged = self.path.read_bytes().count(b"\n") - len(sound) if self.path.exists() else 0
        kept = cut_log(self.path, first_step, undone)
        if undone:
            self.hidden = [line for line in kept if json.loads(line)["step"] == first_step]
        self.unwritten = ""  # lines that are not yet in metrics.jsonl
        self.tensorboard: Any = None
        self.settings, self.board = settings, board
        self.first_step, self.total_steps, self.began = first_step, total_steps, time.monotonic()
        self.bar = tqdm(total=total_steps, initial=first_step, unit=" steps", desc=task, disable=None)
        if damaged:
            log.warning("%s: %d damaged line(s) left out", self.path, damaged)

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Logs the figures of one split ("train", "validation", ...) after ``step`` updates."""
        self.unwritten += json.dumps({"step": step, "split": split, **values}) + "\n"
        try:
            self._write_lines()
            self._write_tensorboard(step, split, values)
        except OSError as error:
            log.warning("%s cannot be written (%s): training goes on", self.path, error.strerror or error)
        if self.board:
            self.board.write(step, split, values)
        shown = [text.format(values[name]) for name, text in FORMATS.items() if name in values]
        shown += self._estimate(step) if split == "train" else []
        log.info("step %d/%d  %-10s %s", step, self.total_steps, split, "  ".join(shown))

    def _estimate(self, step: int) -> list[str]:
        seconds = time.monotonic() - self.began
        if step <= self.first_step or not seconds:
            return []
        rate = (step - self.first_step) / seconds
        return [f"{rate:.3g} steps/s", f"{format_time((self.total_steps - step) / rate)} left"]

    def _write_lines(self) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(self.unwritten)
        except OSError:
            os.truncate(self.path, size)  # leave no half line behind
            raise
        self.unwritten = ""

    def _write_tensorboard(self, step: int, split: str, values: Mapping[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            if self.tensorboard is None:
                self.tensorboard = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=self.purge_step)
                self.purge_step = None
                self._write_settings()
                for line in map(json.loads, self.hidden):
                    self._add_figures(line.pop("step"), line.pop("split"), line)
                self.hidden = []
            self._add_figures(step, split, values)
            self.tensorboard.flush()
        except OSError:
            self.tensorboard = None  # its thread has ended: the next line needs a new one
            raise

    def _add_figures(self, step: int, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.tensorboard.add_scalar(f"{find_group(name)}/{name}/{split}", value, step)

    def _write_settings(self) -> None:
        from torch.utils.tensorboard.summary import hparams

        if self.settings:
            known = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in self.settings.items()}
            judged = {f"{find_group(name)}/{name}/{split}": 0.0 for name, split in JUDGED_BY}
            for summary in hparams(known, judged):
                self.tensorboard._get_file_writer().add_summary(summary)

    def step(self) -> None:
        """Moves the progress bar by one update."""
        self.bar.update(1)

    def close(self) -> None:
        """Writes what could not be written before, if it can be written now."""
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


def cut_log(path: Path, step: int, undone: tuple[str, ...] = ()) -> list[str]:
    """Cuts a metrics.jsonl after a step, and that step's lines of the splits ``undone``; returns what stays."""
    kept = [line for line in complete_lines(path) if _is_kept(line, step, undone)]
    write_atomically(path, "".join(kept))
    return kept


def _is_kept(text: str, first_step: int, undone: tuple[str, ...]) -> bool:
    line = json.loads(text)
    return 0 < first_step >= line["step"] and not (line["step"] == first_step and line["split"] in undone)


# Of the figures that the screen shows, those first that move from the beginning. Accuracy and F1 of pairs are in
# metrics.jsonl alone: they stay where always saying "negative" puts them for long, while the AUC already grows.
FORMATS = {
    "loss": "loss {:.3f}",
    "pair_auc": "AUC {:.3f}",
    "pair_mrr": "MRR {:.3f}",
    "pair_loss": "pair {:.4f}",
    "mlm_loss": "mlm {:.3f}",
    "mlm_accuracy": "mlm acc {:.3f}",
    "rtd_loss": "rtd {:.4f}",
    "rtd_recall": "found {:.3f}",
    "map": "MAP {:.4f}",
    "mrr": "MRR {:.4f}",
    "p@1": "P@1 {:.4f}",
    "learning_rate": "lr {:.1e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "pairs_per_second": "{:,.0f} pairs/s",
    "data_wait_percent": "wait {:.1f}%",
}


JUDGED_BY = (("loss", "validation"), ("map", "dev"))  # the figures beside which TensorBoard shows a run's settings
GROUPS = (  # of curves in TensorBoard, which sorts them by name: what to look at first is numbered first
    ("1 loss", ("loss", "pair_loss", "mlm_loss", "rtd_loss")),
    ("2 quality", ("pair_", "map", "mrr", "p@1", "ndcg")),
    ("3 tokens", ("mlm_", "rtd_", "replaced_share", "masked")),
    ("5 course", ("learning_rate", "grad_norm", "tokens", "skipped_steps", "share_")),
    ("6 speed", ("tokens_per_second", "pairs_per_second", "padding_", "data_wait", "mfu", "token_imbalance")),
)


def find_group(name: str) -> str:
    """Returns the group of a figure's curve in TensorBoard; figures of a mixture's part have a group of their own."""
    if "/" in name:
        return "4 by part"
    starts = {start: group for group, names in GROUPS for start in names if name.startswith(start)}
    return starts[max(starts, key=len)] if starts else "2 quality"


def format_time(seconds: float) -> str:
    """Formats a duration as "40 s", "12 min" or "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Returns the sound lines of a run's metrics.jsonl, parsed."""
    return [json.loads(line) for line in complete_lines(folder / METRICS)]


def complete_lines(path: Path) -> list[str]:
    """Returns the sound lines of a metrics.jsonl. A killed run may have left half a line at the end."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [line.decode("utf-8") for line in lines if line.endswith(b"\n") and _is_sound(line)]


def _is_sound(line: bytes) -> bool:
    try:
        entry = json.loads(line.decode("utf-8"))  # json's own decoding takes what UTF-8 does not have
        return isinstance(entry["step"], int) and 0 <= entry["step"] <= MOST_STEPS and isinstance(entry["split"], str)
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


class WandbBoard:
    """The run in Weights & Biases, one for all starts. Training goes on where W&B fails.

    Raises KinspanError where W&B is not installed, cannot be reached or does not know the user.
    """

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
            self.run.define_metric("step")  # W&B's own counter cannot be set back
            self.run.define_metric("*", step_metric="step")
        except Exception as error:  # wandb's own kinds are not all exported
            raise KinspanError(f"--wandb {project}: Weights & Biases cannot be used: {quote_error(error)}") from error

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Sends the figures of a split after ``step`` updates; a step repeated after a restart has the same ones."""
        try:
            self.run.log({"step": step, **{f"{split}/{name}": value for name, value in values.items()}})
        except Exception as error:
            log.warning("step %d does not reach Weights & Biases (%s): training goes on", step, quote_error(error))

    def close(self) -> None:
        """Waits until W&B has all lines, or WANDB_SECONDS; it keeps the others in the run's folder."""
        try:
            self.run.finish()
        except Exception as error:
            log.warning("Weights & Biases has not got everything: %s", quote_error(error))
