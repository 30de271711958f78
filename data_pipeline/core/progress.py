"""Writes messages and progress bars to stderr; where stderr is no terminal, lines replace the bars."""

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tqdm import tqdm

from data_pipeline.core.errors import make_printable, redact

PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch", "benchmarks", "__main__")
LINE_SECONDS = 30.0  # between two lines of progress, and before the first


class _StderrHandler(logging.Handler):
    """Writes to the current stderr, above any progress bar. Other ranks than the first write only errors."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or _is_first_rank():
            prefix = "warning: " if record.levelno == logging.WARNING else ""
            with suppress(OSError):  # a full disk or a closed terminal ends no work
                write = tqdm.write if sys.stderr.isatty() else print
                write(prefix + make_printable(redact(self.format(record))), file=sys.stderr)


def write_at_once(line: str) -> None:
    """Writes a line to stderr, if it can be written, also from the handler of a signal."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def set_up_logging() -> None:
    """Shows this project's messages from INFO and other libraries' from WARNING on; called once, by the entry."""
    # bm25s logs from DEBUG on
    logging.basicConfig(handlers=[_StderrHandler(logging.INFO)], format="%(message)s", level=logging.WARNING)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)


class _Lines(tqdm):
    """Writes a line of progress every LINE_SECONDS, and none for work that ends before the first is due."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # "" would clear a bar
            write_at_once(str(self))


def show_progress(
    title: str, unit: str, items: Iterable | None = None, total: int | None = None, quiet: bool = False, **options: Any
) -> tqdm:
    """Shows a bar of ``items`` as they are iterated, or of what ``update`` adds. Only the first rank shows it.

    quiet: shows nothing, for work that is short or shown by another process
    options: any of tqdm's own settings
    """
    is_hidden = quiet or not _is_first_rank()
    settings: dict[str, Any] = {"mininterval": 1.0, "disable": is_hidden, "unit": f" {unit}", **options}
    if sys.stderr.isatty():
        return tqdm(items, title, total, **settings)
    settings |= {"mininterval": LINE_SECONDS, "miniters": 1, "delay": LINE_SECONDS, "leave": False}
    line = "{desc}: {n_fmt} of {total_fmt}{unit}, {remaining} left{postfix}"
    return _Lines(items, title, total, bar_format=line, **settings)


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
