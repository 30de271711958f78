"""One's own data in files: ``files=FOLDER`` with a file for each split, or ``files=FILE``."""

import lzma
import zlib
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES, open_decompressed

from .answers import AnswerSet
from .collect import collect_answers
from .dataset import MissingSplit, explain_missing, find_files
from .tables import FORMATS, read_candidates, read_table

NAME = "files"
REWRITE = (
    "which has no reader here: write its questions and candidates as lines {question, answer, label} of a .jsonl file"
)
# What to do with XML files, by a tag that stands near their beginning
FOREIGN = {
    b"<QApairs": "TREC-QA in Jacana's form: name its folder as jacana=FOLDER",
    b"<row Id=": f"a dump of StackExchange, {REWRITE}",
    b"<RelQuestion ": "related questions of SemEval: name its folder as semeval2016=FOLDER or semeval2017=FOLDER",
    b"<Question QID=": f"community questions in SemEval's form of 2015, {REWRITE}",
}
HEAD = 4096  # bytes of a file that are looked at
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
        suffix = Path(place.stem).suffix if place.suffix in COMPRESSED_SUFFIXES else place.suffix
        if suffix not in FORMATS:
            raise KinspanError(f"{place}: not a known format; known are {', '.join(FORMATS)}{_recognise([place])}")
        if split != "test":
            raise KinspanError(f"files={place}: no split {split}: a single file is the split test")
        return place
    names = [f"{split}{suffix}" for suffix in FORMATS]
    found = find_files(place, names)
    if not found:
        inside = sorted(place.glob("*.xml*")) if place.is_dir() else []
        raise MissingSplit(f"files={place}: no split {split}: {explain_missing(place, names)}{_recognise(inside)}")
    if len(found) > 1:
        raise KinspanError(f"{place}: both {found[0].name} and {found[1].name} are there: which is {split}? Keep one")
    return found[0]


def _recognise(paths: list[Path]) -> str:
    """Says what to do with the first of these files that is of a form that is known, but has no reader."""
    for path in paths:
        try:
            with open_decompressed(path) as file:
                head = file.read(HEAD)
        except (OSError, EOFError, lzma.LZMAError, zlib.error):
            continue
        for tag, advice in FOREIGN.items():
            if tag in head:
                return f"; {path.name} is {advice}"
    return ""
