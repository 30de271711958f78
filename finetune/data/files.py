"""The user's data: ``files=FOLDER`` with a file for each split, ``files=FILE``, and ``hub=OWNER/NAME``."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import expect_hub

from .answers import AnswerSet, fold_text
from .collect import collect_answers
from .dataset import MissingSplit
from .tables import FORMATS, Record, Table, find_suffix, read_candidates, read_table

log = logging.getLogger(__name__)
NAME, HUB = "files", "hub"
HELP = {
    "files=FOLDER": "train, dev and test, each .jsonl, .csv, .tsv or .parquet, with the columns question, answer and "
    "label (0 or 1), and optionally question_id and answer_id. The first line of .csv and .tsv files names the "
    "columns, and .tsv files have no quoting. Without question_id, questions are told apart by their text.",
    "files=FILE": "One such file. Unless its name says which split it is, its questions are split in three by a hash "
    "of their first right answers; so are those of a folder with one file.",
    "hub=OWNER/NAME": "A data set of the hub, or a folder that datasets.load_dataset opens, with such columns. The "
    "split dev may be called dev, val, valid or validation there.",
}
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
TEST_SHARE, DEV_SHARE = 0.4, 0.25  # of the questions that are not assigned yet: test is chosen first, then dev


def load_files(place: Path, split: str, columns: dict[str, str]) -> AnswerSet:
    """Reads a split, see ``registry.load_split``."""
    expect_tables(place)
    tables = list_tables(place)
    if split == "train" and (unread := [path.name for path in _list_all_tables(place) if path not in tables]):
        log.info("%s: no train, dev or test by name, so not read: %s", place, ", ".join(unread))
    if not has_splits(place):
        data = load_unsplit(place, columns)
    elif named := [path for path in tables if _name_split(path) == split]:
        if len(named) > 1:
            raise KinspanError(f"{place}: both {named[0].name} and {named[1].name} are there: keep one")
        return _load_table(named[0], split, columns)
    else:
        raise MissingSplit(f"files={place}: no split {split}: no {split}.jsonl, .csv, .tsv or .parquet")
    test, rest = split_off(data, "test", TEST_SHARE)
    dev, train = split_off(rest, "dev", DEV_SHARE)
    part = replace({"train": train, "dev": dev, "test": test}[split], split=split)
    if not part.num_questions:
        raise KinspanError(f"{place}: {split} is empty: too few right answers to split by; give train, dev and test")
    log.info("%s: %s of %s questions are %s, by hash of answers", place, part.num_questions, data.num_questions, split)
    return part


def load_unsplit(place: Path, columns: dict[str, str]) -> AnswerSet:
    """Reads all questions of a place that has no splits, see ``has_splits``."""
    return _load_table(list_tables(place)[0], "train", columns)


def _load_table(path: Path, split: str, columns: dict[str, str]) -> AnswerSet:
    table = read_table(path)
    data = collect_answers(NAME, split, table.place, read_candidates(table, columns))
    if count := int(((data.labels == 0) & ~data.distinct.wrong).sum()):
        log.info("%s: candidates with the label 0 that also have 1 for the same question: %s", path, f"{count:,}")
    return data


def has_splits(place: Path) -> bool:
    """Returns whether the place has a file for each split, rather than one file that is split by a hash."""
    tables = list_tables(place)
    return len(tables) != 1 or _name_split(tables[0]) in SPLIT_NAMES


def list_tables(place: Path) -> list[Path]:
    """Returns the splits, or else the tables, of a place."""
    tables = _list_all_tables(place)
    return [path for path in tables if _name_split(path) in SPLIT_NAMES] or tables


def _list_all_tables(place: Path) -> list[Path]:
    return [path for path in _list_files(place) if path.is_file() and find_suffix(path) in FORMATS]


def _list_files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.glob("*"))


def _name_split(path: Path) -> str:
    stem = path.name.partition(".")[0]
    return next((split for split, names in SPLIT_NAMES.items() if stem in names), stem)


def split_off(data: AnswerSet, name: str, share: float) -> tuple[AnswerSet, AnswerSet]:
    """Returns a share of the questions, by a hash of their right answers, as the split ``name``, and the rest."""
    right = np.flatnonzero(data.labels)
    texts = map(fold_text, data.answers.take(pa.array(right)).to_pylist())
    keys = dict(enumerate(map(fold_text, data.questions)))  # of a question without a right answer
    keys |= dict(sorted(zip(data.question_of[right].tolist(), texts, strict=True), reverse=True))  # the last one counts
    hashes = (xxh3_64_intdigest(f"{name} {key}".encode("utf-8", "replace")) for key in keys.values())
    taken = np.fromiter(hashes, np.uint64, data.num_questions) / 2**64 < share
    return replace(data.take(taken), split=name), data.take(~taken)


def expect_tables(place: Path) -> None:
    """Raises KinspanError for a file of an unknown format, and for a forum's dump or a folder with only that."""
    files = _list_files(place)
    dumps = [path for path in files if path.name.startswith("Posts.xml") or path.suffix == ".7z"]
    if dumps and not any(_name_split(path) in SPLIT_NAMES for path in files):
        raise KinspanError(f"files={place}: a forum's dump: make questions of it with kinspan data las --input {place}")
    if place.is_file() and find_suffix(place) not in FORMATS:
        raise KinspanError(f"{place}: not a known format; known are {', '.join(FORMATS)}")


def load_hub(name: str, split: str, columns: dict[str, str]) -> AnswerSet:
    """Reads a split, see ``registry.load_split``."""
    import datasets

    expect_hub(name)
    datasets.disable_progress_bars()
    try:
        splits = datasets.get_dataset_split_names(name)
        chosen = next((candidate for candidate in SPLIT_NAMES[split] if candidate in splits), None)
        if chosen is None:
            raise MissingSplit(f"hub={name}: no split {split}; there are {', '.join(splits)}")
        rows = datasets.load_dataset(name, split=chosen)
    except KinspanError:
        raise
    except Exception as error:  # the hub, the file system and every format raise their own
        raise KinspanError(f"hub={name} cannot be loaded: {quote_error(error)}") from error

    def records(columns: list[str]) -> Iterator[tuple[int, Record]]:
        return enumerate(rows.select_columns(columns), 1)

    table = Table(f"hub={name} {chosen} row", rows.column_names, records)
    return collect_answers(HUB, split, table.place, read_candidates(table, columns))
