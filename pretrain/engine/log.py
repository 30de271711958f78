"""What a run reports: metrics.jsonl, TensorBoard, and a line on the screen."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.core.files import write_atomically
from pretrain.engine.history import MOST_STEPS


class Log:
    """Writes metrics.jsonl, TensorBoard and the screen. Rank 0 alone has one.

    A resumed run removes the lines after its checkpoint, so that each step is logged once. Training goes on where the
    log cannot be written: lines of metrics.jsonl are kept and written with the next ones.

    first_step: that of the checkpoint, or 0
    undone:     splits whose lines of ``first_step`` itself are removed too, because they will be written again
    settings:   of the run, which TensorBoard shows as hyperparameters
    follower:   is told of every line; see pretrain.watching.wandb_board
    """

    def __init__(
        self,
        folder: Path,
        first_step: int,
        total_steps: int,
        task: str = "pre-training",
        undone: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
        follower: Any = None,
    ) -> None:
        from tqdm import tqdm

        self.path = folder / "metrics.jsonl"
        self.purge_step: int | None = first_step + (not undone)  # from there on TensorBoard hides what it had
        self.hidden: list[str] = []  # lines that hold, and that TensorBoard hides with others of the same step
        sound = complete_lines(self.path)
        damaged = self.path.read_bytes().count(b"\n") - len(sound) if self.path.exists() else 0
        kept = cut_log(self.path, first_step, undone)
        if undone:
            self.hidden = [line for line in kept if json.loads(line)["step"] == first_step]
        self.unwritten = ""  # lines that are not yet in metrics.jsonl
        self.board: Any = None
        self.settings, self.follower = settings, follower
        self.first_step, self.total_steps, self.began = first_step, total_steps, time.monotonic()
        self.bar = tqdm(total=total_steps, initial=first_step, unit=" steps", desc=task, disable=None)
        if damaged:
            self.say(f"{self.path}: {damaged} damaged line(s) left out")

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Logs the figures of one split ("train", "validation", ...) after ``step`` updates."""
        self.unwritten += json.dumps({"step": step, "split": split, **values}) + "\n"
        try:
            self._write_lines()
            self._write_board(step, split, values)
        except OSError as error:
            self.say(f"the log cannot be written ({error.strerror or error}): training goes on")
        if self.follower:
            self.follower.write(step, split, values)
        shown = [text.format(values[name]) for name, text in FORMATS.items() if name in values]
        shown += self._estimate(step) if split == "train" else []
        self.say(f"step {step}/{self.bar.total}  {split:<10} " + "  ".join(shown))

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

    def _write_board(self, step: int, split: str, values: dict[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            if self.board is None:
                self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=self.purge_step)
                self.purge_step = None
                self._write_settings()
                for line in map(json.loads, self.hidden):
                    self._add_figures(line.pop("step"), line.pop("split"), line)
                self.hidden = []
            self._add_figures(step, split, values)
            self.board.flush()
        except OSError:
            self.board = None  # its thread has ended: the next line needs a new one
            raise

    def _add_figures(self, step: int, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.board.add_scalar(f"{find_group(name)}/{name}/{split}", value, step)

    def _write_settings(self) -> None:
        from torch.utils.tensorboard.summary import hparams

        if self.settings:
            known = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in self.settings.items()}
            judged = {f"{find_group(name)}/{name}/{split}": 0.0 for name, split in JUDGED_BY}
            for summary in hparams(known, judged):
                self.board._get_file_writer().add_summary(summary)

    def say(self, text: str) -> None:
        """Prints a line above the progress bar."""
        self.bar.write(text)

    def step(self) -> None:
        """Moves the progress bar by one update."""
        self.bar.update(1)

    def close(self) -> None:
        """Writes what could not be written before, if it can be written now."""
        if self.unwritten:
            try:
                self._write_lines()
            except OSError as error:
                self.say(f"the last lines of {self.path} could not be written ({error.strerror or error})")
        self.bar.close()
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
    """The group of a figure's curve in TensorBoard; figures of one part of a mixture have a group of their own."""
    if "/" in name:
        return "4 by part"
    starts = {start: group for group, names in GROUPS for start in names if name.startswith(start)}
    return starts[max(starts, key=len)] if starts else "2 quality"


def format_time(seconds: float) -> str:
    """A duration as people say it: "40 s", "12 min" or "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The sound lines of a run's metrics.jsonl, parsed."""
    return [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]


def complete_lines(path: Path) -> list[str]:
    """The sound lines of a metrics.jsonl. A killed run may have left half a line at the end."""
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
