"""Types of the readers: a format's ``Reader``, its source files and its records."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from data_pipeline.core.errors import redact
from data_pipeline.prepare.document import Document, Rejected

MAX_RECORD_BYTES = 64 << 20  # a longer line, row, page or file is rejected, to bound memory
PART_BYTES = 64 << 20  # approximate size of a part of a large file
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".7z", ".zip", ".parquet", ".docx", ".pdf")  # suffixes of such formats
EXPANSION = 4  # estimated bytes of text per byte of a compressed file
MIN_BOMB_BYTES = 1 << 30  # less does no harm, however small the compressed file is
MAX_RATIO = 250  # xz compresses text about 5-fold, and repetitive text 100-fold


class Meter:
    """Counts the bytes that are read from an input file, and those that are unpacked from it, at any depth."""

    read = unpacked = 0

    def count_read(self, count: int) -> None:
        self.read += count

    def count_unpacked(self, count: int) -> None:
        """Raises ValueError if the file expands more than text can, so that it cannot fill the disk or take hours."""
        self.unpacked += count
        if self.unpacked > MIN_BOMB_BYTES and self.unpacked > MAX_RATIO * self.read:
            raise ValueError(f"it grows {self.unpacked // max(1, self.read):,}-fold when unpacked, which no text does")


@dataclass(frozen=True)
class FilePart:
    """A part ``[begin, end)`` of a file, for one task, in the reader's unit, such as bytes or row groups."""

    begin: int
    end: int


@dataclass(frozen=True)
class Record:
    """A raw record of ``file``, which inside an archive is named ``ARCHIVE::FILE``.

    line:   number of the record in its file, from 1; or, in a part that is not the first, its offset in bytes
    called: the file's path in ids, if it is in an archive or its base name is not unique; else ""
    folder: the name of the folder of --input that the file was found in; else ""
    """

    file: str
    line: int
    content: Any
    called: str = ""
    folder: str = ""

    @property
    def name(self) -> str:
        """Returns the file's name in the ids of its documents: ``called``, or else its base name."""
        return self.called or name_file(self.file)

    @property
    def source(self) -> str:
        """Returns the name of what the file was found in: a folder, or the outermost archive; else its own."""
        return self.folder or name_file(self.file.partition("::")[0])


@dataclass(frozen=True)
class SourceFile:
    """A file to read: on a disk, behind a URL, or inside an archive. A link in an archive is not followed.

    name:        as messages and corpora show it; ``open`` knows the whole address
    find_beside: finds another file in the same folder by its name
    size:        in bytes; 0 if it is unknown
    meter:       that of the input file that it is, or lies in
    path:        the path of a file on a disk, else ""
    """

    name: str
    open: Callable[[], IO[bytes]]
    find_beside: Callable[[str], "SourceFile | None"] = lambda name: None
    size: int = 0
    is_link: bool = False
    meter: Meter = field(default_factory=Meter)
    path: str = ""


@dataclass(frozen=True)
class Reader:
    """Reads and parses the records of a format's files.

    read:              yields ``(line number, content)`` of a file or a part; must keep only one record in memory
    parse:             returns the documents of a record, or raises Rejected; it runs in a worker process
    has_code:          whether ``parse`` takes ``keep_code``: whether blocks of code are paragraphs
    may_be_compressed: whether ``read`` opens its files with ``compression.open_source``
    split:             cuts a file, given its name and size in bytes, into parts that can be read separately
    names:             regular expression of the base names that this reader accepts, whatever their suffix
    companions:        regular expression of the base names of files that are read along with such a file
    ignored:           regular expression of the base names to skip
    modules:           libraries that the reader imports
    """

    read: Callable[[SourceFile, FilePart | None], Iterator[tuple[int, Any]]]
    parse: Callable[..., list[Document]]
    may_be_compressed: bool = False
    split: Callable[[str, int], Sequence[FilePart | None]] | None = None
    names: str = ""
    companions: str = ""
    ignored: str = ""
    modules: tuple[str, ...] = ()
    has_code: bool = False


def estimate_text(name: str, size: int) -> int:
    """Estimates how many bytes of text a file of this name and size holds."""
    return size * (EXPANSION if redact(name).lower().endswith(COMPRESSED) else 1)


def group_parts(sizes: Sequence[int]) -> list[FilePart]:
    """Groups a file's neighbouring members, given their sizes, into parts of about PART_BYTES."""
    parts, begin, total = [], 0, 0
    for number, size in enumerate(sizes, 1):
        total += size
        if total >= PART_BYTES or number == len(sizes):
            parts.append(FilePart(begin, number))
            begin, total = number, 0
    return parts


def name_file(name: str) -> str:
    return os.path.basename(redact(name).rpartition("::")[2])


def reject_too_long(kind: str, size: int) -> Rejected:
    return Rejected(f"the {kind} is larger than {MAX_RECORD_BYTES >> 20} MB: cut it into several documents", size)


def measure_content(content: Any) -> int:
    """Returns the decompressed size of a record in bytes; a row's is the sum over its values."""
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if isinstance(content, Rejected):
        return content.size
    if isinstance(content, Document):
        return measure_content(content.paragraphs)
    if isinstance(content, dict | list):
        return sum(map(measure_content, content.values() if isinstance(content, dict) else content))
    return 0 if content is None else len(str(content))
