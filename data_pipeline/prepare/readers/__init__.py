"""Reading documents: one file per format, and the registry of all formats.

To add a format, write a file beside ``jsonl.py`` that defines ``READER``, which says how a file is cut into raw
records and how a record becomes documents (see ``reader.Reader``), and add a line to READERS.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.prepare.document import Document, Rejected, Unreadable

from . import jsonl, parquet, python_docs, text
from .compression import COMPRESSED_SUFFIXES
from .reader import Part, Reader, Record

PYTHON_DOCS = python_docs.SOURCE  # the --input that stands for the embedded default corpus

READERS: dict[str, Reader] = {
    ".jsonl": jsonl.READER,
    ".txt": text.READER,
    ".parquet": parquet.READER,
    PYTHON_DOCS: python_docs.READER,
}


def _describe_formats() -> str:
    suffixes = [suffix for suffix in READERS if suffix != PYTHON_DOCS]
    compressible = [suffix for suffix in suffixes if READERS[suffix].may_be_compressed]
    others = [suffix for suffix in suffixes if suffix not in compressible]
    return f"{' and '.join(compressible)} (also {', '.join(COMPRESSED_SUFFIXES)}), {', '.join(others)}"


FORMATS = _describe_formats()  # for help texts and error messages


def find_reader(path: Path) -> Reader | None:
    """Find the reader of a file by its suffixes; None where no reader takes it."""
    if str(path) == PYTHON_DOCS:
        return READERS[PYTHON_DOCS]
    is_compressed = path.suffix in COMPRESSED_SUFFIXES
    reader = READERS.get(Path(path.stem).suffix if is_compressed else path.suffix)
    return None if reader and is_compressed and not reader.may_be_compressed else reader


UNREADABLE = "cannot read on"  # how the reason begins, in rejected.jsonl


def find_input_files(inputs: list[str], allow_skipped: bool = False) -> tuple[list[Path], Counter[str]]:
    """Find the files that ``--input`` names: paths, globs, folders (searched through), or ``python-docs``.

    They are sorted within each input, and each file comes once. With them come the numbers of the files in folders
    that are of no known format, by suffix, and of the links there that lead nowhere.

    Raises KinspanError for an input that names nothing, for a named file of no known format, for a folder that cannot
    be searched, and, unless ``allow_skipped``, for a folder that holds files of no known format or links to nothing.
    """
    files: dict[Path, None] = {}
    skipped: set[Path] = set()
    for name in inputs:
        if name == PYTHON_DOCS:
            files[Path(PYTHON_DOCS)] = None
            continue
        found = [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [Path(name)]
        for path in found:
            if path.is_dir():
                inside = _list_files(path)
                known = [p for p in inside if find_reader(p) and p.exists()]
                others = sorted({*inside} - {*known})
                _refuse_missing_text(path, known, others, allow_skipped)
                files.update(dict.fromkeys(known))
                skipped.update(others)
            elif not path.is_file():
                raise KinspanError(f"--input {name}: no such file")
            elif find_reader(path) is None:
                raise KinspanError(f"--input {path}: not a known format; known are {FORMATS}")
            else:
                files[path] = None
    return list(files), Counter(map(_name_suffix, skipped))


def _refuse_missing_text(folder: Path, known: list[Path], others: list[Path], allow_skipped: bool) -> None:
    """Raises KinspanError where a folder has no file that can be read, or, unless ``allow_skipped``, others too."""
    if not known:
        raise KinspanError(
            f"--input {folder}: no file in this folder is of a known format ({count_suffixes(others)}); known are "
            f"{FORMATS}"
        )
    if allow_skipped:
        return
    if broken := [path for path in others if not path.exists()]:
        raise KinspanError(
            f"--input {folder}: {broken[0]} is a link to nothing (the folder has {len(broken)} of them), so text would "
            "be missing: mend it, remove it, or give --allow_skipped to leave it out"
        )
    if others:
        raise KinspanError(
            f"--input {folder}: {count_suffixes(others)} in this folder are of no known format, so their text would be "
            f"missing; known are {FORMATS}: convert them, name the files to read, or give --allow_skipped to leave "
            "them out"
        )


def _list_files(folder: Path) -> list[Path]:
    """List all files below a folder, sorted, with the links that lead nowhere.

    Links to folders are followed, after all that are there without one; each folder is listed once, so no loop of links
    goes on for ever. Raises KinspanError where a folder cannot be searched.
    """

    def refuse(error: OSError) -> None:
        raise KinspanError(f"--input {error.filename} cannot be searched: {error.strerror}") from error

    found: list[Path] = []
    searched: set[str] = set()
    waiting = [folder]
    while waiting:
        links: list[Path] = []
        for start in waiting:
            for parent, folders, names in os.walk(start, onerror=refuse):
                if (place := os.path.realpath(parent)) in searched:
                    folders.clear()
                    continue
                searched.add(place)
                found += [Path(parent, name) for name in names]
                links += [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
        waiting = sorted(links)
    return sorted(path for path in found if path.is_file() or not path.exists())


def _name_suffix(path: Path) -> str:
    """Name the suffix by which a file's format is known, such as ``.csv.gz``; or say that it is a broken link."""
    if not path.exists():
        return "link to nothing"
    is_compressed = path.suffix in COMPRESSED_SUFFIXES
    return (Path(path.stem).suffix + path.suffix if is_compressed else path.suffix) or "no suffix"


def count_suffixes(paths: Iterable[Path]) -> str:
    """Say how many files there are of each suffix: ``60 files (.html), 59 files (.md)``."""
    return format_skipped(Counter(map(_name_suffix, paths)))


def format_skipped(skipped: Counter[str]) -> str:
    """Say how many files were skipped, by suffix, the most frequent first."""
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number} file{'s' * (number > 1)} ({suffix})" for suffix, number in ordered) or "it is empty"


def find_parts(name: str, size: int) -> list[Part | None]:
    """Cut a file into the parts that can be read apart, one task each; None stands for the whole file."""
    return [None]


def read_records(path: str | Path, part: Part | None = None) -> Iterator[Record]:
    """Yield the raw records of a file. Where it cannot be read on, the last record holds the error as Unreadable."""
    path = Path(path)
    reader = find_reader(path)
    assert reader is not None
    line = 0
    try:
        for line, content in reader.read(path):
            yield Record(str(path), line, content)
    except KinspanError:  # already says what to do
        raise
    except Exception as error:  # truncated archives, broken parquet, permissions: each library has its own
        yield Record(str(path), line + 1, Unreadable(f"{UNREADABLE}: {type(error).__name__}: {quote_error(error)}"))


def parse_record(record: Record) -> list[Document]:
    """Make the documents of a record. Raises Rejected where it holds none."""
    if isinstance(record.content, Rejected):
        raise record.content
    reader = find_reader(Path(record.file))
    assert reader is not None
    return reader.parse(record)
