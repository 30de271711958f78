"""Reading documents: one file per format, and the registry of all formats.

To add a format, write a file beside ``jsonl.py`` that defines ``READER``, which says how a file is cut into raw
records and how a record becomes documents (see ``reader.Reader``), and add a line to READERS.
"""

import glob
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.document import Document, Rejected

from . import jsonl, parquet, python_docs, text
from .compression import COMPRESSED_SUFFIXES
from .reader import Reader, Record

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


def find_input_files(inputs: list[str]) -> list[Path]:
    """Find the files that ``--input`` names: paths, globs, folders (searched through), or ``python-docs``.

    They are sorted within each input, and each file comes once.
    Raises KinspanError for an input that names nothing, or a file of no known format.
    """
    files: dict[Path, None] = {}
    for name in inputs:
        if name == PYTHON_DOCS:
            files[Path(PYTHON_DOCS)] = None
            continue
        found = [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [Path(name)]
        for path in found:
            if path.is_dir():
                inside = [p for p in sorted(path.rglob("*")) if p.is_file() and find_reader(p)]
                if not inside:
                    raise KinspanError(f"--input {path}: no file in this folder is of a known format: {FORMATS}")
                files.update(dict.fromkeys(inside))
            elif not path.is_file():
                raise KinspanError(f"--input {name}: no such file")
            elif find_reader(path) is None:
                raise KinspanError(f"--input {path}: not a known format; known are {FORMATS}")
            else:
                files[path] = None
    return list(files)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the raw records of a file. Where it cannot be read on, the last record holds the error as Rejected."""
    reader = find_reader(path)
    assert reader is not None
    line = 0
    try:
        for line, content in reader.read(path):
            yield Record(str(path), line, content)
    except Exception as error:  # truncated archives, broken parquet, permissions: each library has its own
        yield Record(str(path), line + 1, Rejected(f"cannot read on: {type(error).__name__}: {error}"))


def parse_record(record: Record) -> list[Document]:
    """Make the documents of a record. Raises Rejected where it holds none."""
    if isinstance(record.content, Rejected):
        raise record.content
    reader = find_reader(Path(record.file))
    assert reader is not None
    return reader.parse(record)
