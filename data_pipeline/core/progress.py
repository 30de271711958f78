"""Shows progress bars, all alike, and lines in their place where stderr is no terminal."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

EVERY = 30.0  # seconds between two lines, and before the first


class _Lines(tqdm):
    """Writes a line of progress now and then, and none for work that is done before."""

    def __init__(self, items: Iterable | None, title: str, total: int | None, **settings: Any) -> None:
        known = total is not None or hasattr(items, "__len__")
        line = (
            "{desc}: {n_fmt} of {total_fmt}{unit}, {remaining} left{postfix}"
            if known
            else "{desc}: {n_fmt}{unit}{postfix}"
        )
        defaults = {"mininterval": EVERY, "miniters": 1, "delay": EVERY, "leave": False, "bar_format": line}
        super().__init__(items, title, total, **settings | defaults)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # "" would clear a bar
            self.fp.write(f"{self}\n")
            self.fp.flush()


def show_progress(
    title: str, unit: str, items: Iterable | None = None, total: int | None = None, quiet: bool = False, **more: Any
) -> tqdm:
    """Shows a bar of ``items`` as they are iterated, or of what ``update`` adds; a line now and then where stderr is no
    terminal. Of several ranks the first shows it.

    quiet: for work that is too short for a bar, or that another process shows
    more:  any of tqdm's own settings
    """
    settings = {"mininterval": 1.0, "disable": quiet or os.environ.get("RANK", "0") != "0", **more}
    return (tqdm if sys.stderr.isatty() else _Lines)(items, title, total, unit=f" {unit}", **settings)
