"""One's own data in files: ``files=FOLDER`` with a file for each split, or ``files=FILE``."""

from pathlib import Path

from data_pipeline.errors import KinspanError

from .answers import AnswerSet
from .collect import collect_answers
from .dataset import find_split
from .tables import FORMATS, find_suffix, read_candidates, read_table

NAME = "files"
HELP = {
    "FOLDER": "train, dev and test, each .jsonl, .csv, .tsv or .parquet, with the columns question, answer and label "
    "(0 or 1), and optionally question_id and answer_id. The first line of .csv and .tsv files names the columns, and "
    ".tsv files have no quoting. Without question_id, questions are told apart by their text. The columns document_id, "
    "position, title and context are read where --columns names them, as in title=title.",
    "FILE": "One such file, which is the split test.",
}


def load_files(place: Path, split: str, columns: dict[str, str]) -> tuple[AnswerSet, list[str]]:
    """Reads a split, see ``registry.load_split``."""
    path = _find_file(place, split)
    table = read_table(path)
    return collect_answers(NAME, split, table.place, read_candidates(table, columns))


def _find_file(place: Path, split: str) -> Path:
    if place.is_file():
        if find_suffix(place) not in FORMATS:
            raise KinspanError(f"{place}: not a known format; known are {', '.join(FORMATS)}")
        if split != "test":
            raise KinspanError(f"files={place}: no split {split}: a single file is the split test")
        return place
    names = [f"{split}{suffix}" for suffix in FORMATS]
    found = find_split(f"files={place}", place, split, names)
    if len(found) > 1:
        raise KinspanError(f"{place}: both {found[0].name} and {found[1].name} are there: which is {split}? Keep one")
    return found[0]
