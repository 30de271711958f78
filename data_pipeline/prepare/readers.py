"""Reading documents: one entry of READERS for each kind of file.

A reader has two halves. ``records`` runs in the main process and must be cheap: it yields raw records with
their line numbers. ``parse`` runs in a worker and makes documents of one record, or raises Rejected with the
reason. To read another format, write the two and add a line to READERS.
"""

import glob
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from data_pipeline.errors import KinspanError

from .document import Document, Rejected
from .python_docs import python_documents

PYTHON_DOCS = "python-docs"  # the --input that stands for the embedded default corpus


@dataclass(frozen=True)
class Record:
    """One raw record: where it came from and its content: bytes, a row as a dict, or a Document."""

    file: str
    line: int
    content: Any


@dataclass(frozen=True)
class Reader:
    records: Callable[[Path], Iterator[tuple[int, Any]]]
    parse: Callable[[Record], list[Document]]


def open_bytes(path: Path) -> IO[bytes]:
    """The file's content, decompressed by its suffix."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))  # type: ignore[arg-type]
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _whole(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_bytes(path) as file:
        yield 1, file.read()


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as file:
        names = [n for n in ("id", "title", "paragraphs", "text") if n in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=256, columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start})") from error


def split_paragraphs(text: str) -> list[str]:
    """Paragraphs of running text: blank lines part them; where there are none, line ends do."""
    lines = text.splitlines()
    if all(line.strip() for line in lines):
        return lines
    return "\n".join(line if line.strip() else "" for line in lines).split("\n\n")


def _parse_json(record: Record) -> list[Document]:
    try:
        fields = json.loads(_decode(record.content))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}") from error
    return _from_fields(fields, record)


def _from_fields(record_fields: Any, record: Record) -> list[Document]:
    """A document from ``{id?, title?, paragraphs: [str]}`` or ``{id?, title?, text: str}``."""
    if not isinstance(record_fields, dict):
        raise Rejected("not a JSON object")
    paragraphs, text = record_fields.get("paragraphs"), record_fields.get("text")
    if isinstance(paragraphs, list):
        if not all(isinstance(p, str) for p in paragraphs):
            raise Rejected('"paragraphs" holds something that is not a string')
    elif isinstance(text, str):
        paragraphs = split_paragraphs(text)
    else:
        raise Rejected('neither "paragraphs" (a list of strings) nor "text" (a string)')
    name = os.path.basename(record.file)
    own_id = record_fields.get("id")
    given = own_id is not None and isinstance(own_id, str | int) and str(own_id) != ""
    title = record_fields.get("title")
    return [Document(str(own_id) if given else f"{name}:{record.line}", str(title or ""), paragraphs, name)]


def _parse_text(record: Record) -> list[Document]:
    path = Path(record.file)
    return [Document(path.name, path.stem, split_paragraphs(_decode(record.content)), path.name)]


def _parse_row(record: Record) -> list[Document]:
    return _from_fields(record.content, record)


READERS: dict[str, Reader] = {
    ".jsonl": Reader(_lines, _parse_json),
    ".parquet": Reader(_parquet_rows, _parse_row),
    ".txt": Reader(_whole, _parse_text),
    PYTHON_DOCS: Reader(
        lambda path: enumerate(python_documents(len(os.sched_getaffinity(0))), 1),
        lambda record: [record.content],
    ),
}
COMPRESSED = (".gz", ".xz", ".zst")
TEXT_FORMATS = (".jsonl", ".txt")  # what may be compressed
FORMATS = ".jsonl and .txt (also .gz, .xz, .zst), .parquet"


def reader_of(path: Path) -> Reader | None:
    """The reader for a file by its suffixes, or None."""
    if str(path) == PYTHON_DOCS:
        return READERS[PYTHON_DOCS]
    kind = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    if path.suffix in COMPRESSED and kind not in TEXT_FORMATS:
        return None
    return READERS.get(kind)


def input_files(inputs: list[str]) -> list[Path]:
    """The files that ``--input`` names: paths, globs, folders (searched through), or ``python-docs``.

    Sorted within each input, each file once. Raises KinspanError for one that names nothing or no known format.
    """
    files: dict[Path, None] = {}
    for name in inputs:
        if name == PYTHON_DOCS:
            files[Path(PYTHON_DOCS)] = None
            continue
        found = [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [Path(name)]
        for path in found:
            if path.is_dir():
                inside = [p for p in sorted(path.rglob("*")) if p.is_file() and reader_of(p)]
                if not inside:
                    raise KinspanError(f"--input {path}: no file in this folder is of a known format: {FORMATS}")
                files.update(dict.fromkeys(inside))
            elif not path.is_file():
                raise KinspanError(f"--input {name}: no such file")
            elif reader_of(path) is None:
                raise KinspanError(f"--input {path}: not a known format; known are {FORMATS}")
            else:
                files[path] = None
    return list(files)


def read_records(path: Path) -> Iterator[Record]:
    """The raw records of one file. A file that cannot be read (on) gives a last Record holding the error."""
    reader = reader_of(path)
    assert reader is not None
    line = 0
    try:
        for line, content in reader.records(path):
            yield Record(str(path), line, content)
    except Exception as error:  # truncated archives, broken parquet, permissions: each library has its own
        yield Record(str(path), line + 1, Rejected(f"cannot read on: {type(error).__name__}: {error}"))


def parse(record: Record) -> list[Document]:
    """The documents of a record; raises Rejected."""
    if isinstance(record.content, Rejected):
        raise record.content
    reader = reader_of(Path(record.file))
    assert reader is not None
    return reader.parse(record)
