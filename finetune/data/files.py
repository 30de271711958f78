"""One's own data in files: ``files=FOLDER`` with a file for each split, or ``files=FILE``."""

from pathlib import Path

from data_pipeline.core.errors import KinspanError

from .answers import AnswerSet
from .collect import collect_answers
from .dataset import MissingSplit, find_split
from .tables import FORMATS, find_suffix, read_candidates, read_table

NAME = "files"
HELP = {
    "FOLDER": "train, dev and test, each .jsonl, .csv, .tsv or .parquet, with the columns question, answer and label "
    "(0 or 1), and optionally question_id and answer_id. The first line of .csv and .tsv files names the columns, and "
    ".tsv files have no quoting. Without question_id, questions are told apart by their text.",
    "FILE": "One such file, which is the split test.",
}


def load_files(place: Path, split: str, columns: dict[str, str]) -> tuple[AnswerSet, list[str]]:
    """Reads a split, see ``registry.load_split``."""
    path = _find_file(place, split)
    table = read_table(path)
    return collect_answers(NAME, split, table.place, read_candidates(table, columns))


def expect_tables(place: Path) -> None:
    """Raises KinspanError for a file of no known format, and for a forum's dump, or a folder with nothing else."""
    inside = [place] if place.is_file() else sorted(place.glob("*"))
    is_split = any(path.name.startswith(("train.", "dev.", "test.")) for path in inside)
    if not is_split and any(map(_is_dump, inside)):
        raise KinspanError(
            f"files={place}: a forum's dump, which has no labelled questions yet; make them first: kinspan data las "
            f"--input {place} --output_dir data/las, and then give files=data/las"
        )
    if place.is_file() and find_suffix(place) not in FORMATS:
        raise KinspanError(f"{place}: not a known format; known are {', '.join(FORMATS)}")


def _is_dump(path: Path) -> bool:
    return path.name.startswith("Posts.xml") or path.suffix == ".7z"


def _find_file(place: Path, split: str) -> Path:
    expect_tables(place)
    if place.is_file():
        if split != "test":
            raise MissingSplit(
                f"files={place}: no split {split}: a single file is the split test; give a folder with a file for each"
            )
        return place
    names = [f"{split}{suffix}" for suffix in FORMATS]
    found = find_split(f"files={place}", place, split, names)
    if len(found) > 1:
        raise KinspanError(f"{place}: both {found[0].name} and {found[1].name} are there: which is {split}? Keep one")
    return found[0]
