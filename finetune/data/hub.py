"""One's own data from the Hugging Face hub, or from a folder that ``datasets`` loads: ``hub=OWNER/NAME``."""

from collections.abc import Callable, Iterator
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import expect_hub

from .answers import AnswerSet
from .collect import collect_answers
from .dataset import MissingSplit
from .tables import Table, read_candidates

NAME = "hub"
HELP = {
    "OWNER/NAME": "A data set of the hub, or a folder that datasets.load_dataset opens, with such columns. The split "
    "dev may be called dev, validation or valid there.",
}
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}


def load_hub(name: str, split: str, columns: dict[str, str]) -> tuple[AnswerSet, list[str]]:
    """Reads a split, see ``registry.load_split``."""
    table = _open_table(name, _find_split(name, split))
    return collect_answers(NAME, split, table.place, read_candidates(table, columns))


def _find_split(name: str, split: str) -> str:
    import datasets

    there = _call_hub(name, lambda: datasets.get_dataset_split_names(name))
    for candidate in SPLIT_NAMES[split]:
        if candidate in there:
            return candidate
    raise MissingSplit(f"hub={name}: no split {split}; there are {', '.join(there)}")


def _open_table(name: str, split: str) -> Table:
    import datasets

    data = _call_hub(name, lambda: datasets.load_dataset(name, split=split))

    def records(columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        return enumerate(data.select_columns(columns), 1)

    return Table(f"hub={name} {split} row", data.column_names, records)


def _call_hub(name: str, load: Callable[[], Any]) -> Any:
    """Calls ``load`` without progress bars; whatever goes wrong becomes a KinspanError of one line."""
    import datasets

    expect_hub(name)
    datasets.disable_progress_bars()
    try:
        return load()
    except Exception as error:  # the hub, the file system and every format have their own
        raise KinspanError(f"hub={name} cannot be loaded: {quote_error(error)}") from error
