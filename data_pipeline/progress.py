"""Progress bars, all alike."""

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def show_progress(
    title: str, unit: str, items: Iterable | None = None, total: int | None = None, quiet: bool = False, **more: Any
) -> tqdm:
    """Show a bar on stderr where that is a terminal: of ``items`` as they are iterated, or of what ``update`` adds.

    quiet: for work that is too short for a bar, or that another process shows
    more:  any of tqdm's own settings
    """
    settings = {"mininterval": 1.0, "disable": quiet or None, **more}
    return tqdm(items, title, total, unit=f" {unit}", **settings)
