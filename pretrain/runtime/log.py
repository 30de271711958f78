"""What a run says: metrics.jsonl, TensorBoard, and a line on the screen."""

import json
import os
from pathlib import Path
from typing import Any


class Log:
    """metrics.jsonl, TensorBoard and the screen; on rank 0 alone.

    A resumed run takes back the lines after the checkpoint, so that each step stands once. Lines that cannot be written
    now (a full disk, say) are kept and written with the next; training goes on.

    first_step: that of the checkpoint, or 0
    undone:     splits whose lines of that very step are taken back too, for they will be written again
    """

    def __init__(
        self,
        folder: Path,
        first_step: int,
        total_steps: int,
        what: str = "pre-training",
        undone: tuple[str, ...] = (),
    ) -> None:
        from tqdm import tqdm

        self.path = folder / "metrics.jsonl"
        self.purge: int | None = first_step + (not undone)  # what TensorBoard shows from there on
        sound = complete_lines(self.path)
        damaged = self.path.read_bytes().count(b"\n") - len(sound) if self.path.exists() else 0
        kept = [line for line in sound if _stays(line, first_step, undone)]
        partial = self.path.with_suffix(".tmp")
        partial.write_text("".join(kept), encoding="utf-8")
        os.replace(partial, self.path)
        self.lines: list[tuple[int, str, dict[str, float]]] = []  # not yet in metrics.jsonl
        self.points: list[tuple[int, str, dict[str, float]]] = []  # not yet in TensorBoard
        self.board: Any = None
        self.bar = tqdm(total=total_steps, initial=first_step, unit=" steps", desc=what, disable=None)
        if damaged:
            self.say(f"{self.path}: {damaged} damaged line(s) left out")

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        for waiting in (self.lines, self.points):
            waiting.append((step, split, values))
        self._catch_up()
        self.say(f"step {step}/{self.bar.total}  {split:<10} " + "  ".join(_short(values, split)))

    def _catch_up(self) -> None:
        for write in (self._write_lines, self._write_board):
            try:
                write()
            except OSError as error:
                self.say(f"the log cannot be written yet ({error.strerror or error}): training goes on")

    def _write_lines(self) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                for step, split, values in self.lines:
                    file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        except OSError:
            os.truncate(self.path, size)  # no half lines
            raise
        self.lines.clear()

    def _write_board(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            if self.board is None:
                self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=self.purge)
                self.purge = None
            for step, split, values in self.points:
                for name, value in values.items():
                    self.board.add_scalar(f"{split}/{name}", value, step)
            self.board.flush()
        except OSError:
            self.board = None  # its thread is dead
            raise
        self.points.clear()

    def say(self, text: str) -> None:
        self.bar.write(text)

    def step(self) -> None:
        self.bar.update(1)

    def close(self) -> None:
        if self.lines or self.points:
            self._catch_up()
        self.bar.close()
        if self.board:
            self.board.close()


def _stays(text: str, first_step: int, undone: tuple[str, ...]) -> bool:
    line = json.loads(text)
    return 0 < first_step >= line["step"] and not (line["step"] == first_step and line["split"] in undone)


_SHORT = {
    "loss": "loss {:.3f}",
    "mlm_loss": "mlm {:.3f}",
    "mlm_accuracy": "mlm acc {:.3f}",
    "rtd_loss": "rtd {:.4f}",
    "rtd_recall": "found {:.3f}",
    "pair_loss": "pair {:.3f}",
    "pair_accuracy": "acc {:.3f}",
    "pair_f1": "F1 {:.3f}",
    "pair_auc": "AUC {:.3f}",
    "map": "MAP {:.4f}",
    "mrr": "MRR {:.4f}",
    "p@1": "P@1 {:.4f}",
    "learning_rate": "lr {:.1e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "pairs_per_second": "{:,.0f} pairs/s",
    "data_wait_percent": "wait {:.1f}%",
}


def _short(values: dict[str, float], split: str) -> list[str]:
    return [text.format(values[name]) for name, text in _SHORT.items() if name in values]


def complete_lines(path: Path) -> list[str]:
    """The sound lines of a metrics.jsonl, whose last one a killed run may have left half."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [line.decode("utf-8") for line in lines if line.endswith(b"\n") and _is_sound(line)]


def _is_sound(line: bytes) -> bool:
    try:
        entry = json.loads(line)
        return isinstance(entry["step"], int) and isinstance(entry["split"], str)
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
