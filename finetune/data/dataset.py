"""Describes a public data set, and finds the files of its splits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES

from .answers import AnswerSet
from .collect import LeftOut, SourceRow, collect_answers

# Papers that print counts
TANDA, DI_LIELLO, MULTICQA = "Garg et al., 2020", "Di Liello et al., 2022, table 4", "Rücklé et al., 2020, table 1"


class MissingSplit(KinspanError):
    """The data set has no such split."""


@dataclass(frozen=True)
class PaperCount:
    """How many questions and pairs a split has according to a paper; pairs None: it does not say."""

    paper: str
    questions: int
    pairs: int | None = None


@dataclass(frozen=True)
class DataSet:
    """A public data set: a folder with a file for each split.

    file_names:   given a split, the names that its file may have, the preferred one first; each may be compressed
    read:         yields the rows of a split's file, and what it left out
    paper_counts: by split and filter, the counts that papers print
    graded:       the labels are ASNQ's grades 1 to 4 instead of 0 and 1
    ambiguous:    splits of which differing files exist, so that a note names the one that was read
    accuracy:     papers measure it by P@1, which they call accuracy, and not by MAP
    measured_on:  the filter of the dev and test questions that papers measure on; None: they differ
    """

    name: str
    help: str
    file_names: Callable[[str], Sequence[str]]
    read: Callable[[Path], Iterator[SourceRow | LeftOut]]
    paper_counts: Mapping[tuple[str, str], tuple[PaperCount, ...]] = field(default_factory=dict)
    graded: bool = False
    ambiguous: tuple[str, ...] = ()
    accuracy: bool = False
    measured_on: str | None = None

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> tuple[AnswerSet, list[str]]:
        """Reads a split, see ``registry.load_split``."""
        path = find_split(f"{self.name}={folder}", folder, split, self.file_names(split))[0]
        grades = negative_grades if self.graded else None
        data, notes = collect_answers(self.name, split, f"{path} line", self.read(path), grades)
        if split in self.ambiguous:
            notes.insert(0, f"{self.name} {split}: read from {path.name}")
        return data, notes


def find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Returns those of these files that exist, compressed or not, in the order of ``names``."""
    return [
        path
        for name in names
        for suffix in ("", *COMPRESSED_SUFFIXES)
        if (path := folder / f"{name}{suffix}").is_file()
    ]


def find_split(place: str, folder: Path, split: str, names: Sequence[str]) -> list[Path]:
    """Returns those of a split's files that exist. Raises MissingSplit, which begins with ``place``, for none."""
    if paths := find_files(folder, names):
        return paths
    if not folder.is_dir():
        raise MissingSplit(f"{place}: there is no such folder")
    raise MissingSplit(f"{place}: no split {split}: looked for {', '.join(names)}")


def find_beside(path: Path, name: str) -> Path:
    """Returns the file of this name, compressed or not, beside a split's."""
    if paths := find_files(path.parent, [name]):
        return paths[0]
    raise KinspanError(f"{path.parent}: {name} is not there")
