"""Describes a public data set, and finds the files of its splits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES

from .answers import AnswerSet
from .collect import LeftOut, SourceRow, collect_answers


class MissingSplit(KinspanError):
    """The data set has no such split."""


@dataclass(frozen=True)
class DataSet:
    """A public data set: a folder with a file for each split.

    file_names:   given a split, the names that its file may have, the preferred one first; each may be compressed
    read:         yields the rows of a split's file, and those that it leaves out
    graded:       the labels are ASNQ's grades 1 to 4 instead of 0 and 1
    accuracy:     papers measure it by P@1, which they call accuracy, and not by MAP
    unit:         the name of a row in messages
    measured_on:  the filter of dev and test questions in papers; None: papers differ
    """

    name: str
    help: str
    file_names: Callable[[str], Sequence[str]]
    read: Callable[[Path], Iterator[SourceRow | LeftOut]]
    graded: bool = False
    accuracy: bool = False
    unit: str = "line"
    measured_on: str | None = None

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> AnswerSet:
        """Reads a split, see ``registry.load_split``."""
        path = find_split(f"{self.name}={folder}", folder, split, self.file_names(split))
        grades = negative_grades if self.graded else None
        return collect_answers(self.name, split, f"{path} {self.unit}", self.read(path), grades)


def find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Returns those of these files that exist, compressed or not, in the order of ``names``."""
    paths = (folder / f"{name}{suffix}" for name in names for suffix in ("", *COMPRESSED_SUFFIXES))
    return [path for path in paths if path.is_file()]


def find_split(place: str, folder: Path, split: str, names: Sequence[str]) -> Path:
    """Returns the first of a split's files that exists. Raises MissingSplit, naming ``place``, if there is none."""
    if paths := find_files(folder, names):
        return paths[0]
    raise MissingSplit(f"{place}: no split {split}: looked for {', '.join(names)}")


def find_beside(path: Path, name: str) -> Path:
    """Returns the file of this name, compressed or not, in the folder of a split's file."""
    if paths := find_files(path.parent, [name]):
        return paths[0]
    raise KinspanError(f"{path.parent}: {name} is not there")
