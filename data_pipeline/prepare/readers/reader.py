"""What a reader is: the types of each format's ``READER``, of what it reads from, and of what it yields."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from data_pipeline.prepare.document import Document, Rejected

MAX_RECORD_BYTES = 64 << 20  # a longer line, row, page or file is rejected, so that memory stays bounded
PART_BYTES = 64 << 20  # about how much of a large file one part holds
EXPANSION = 4  # about how many bytes of text one byte of a compressed file holds
PACKED = (".gz", ".bz2", ".xz", ".zst", ".7z", ".zip", ".parquet", ".docx", ".pdf")  # suffixes of such files
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks


@dataclass(frozen=True)
class FilePart:
    """A part of a file, for one task. What its two numbers mean is the reader's own: bytes, row groups, members."""

    begin: int
    end: int


@dataclass(frozen=True)
class Record:
    """One raw record of a file.

    file:    is a path or URL; a file inside an archive is named ``ARCHIVE::FILE``
    line:    is the record's number in its file, from 1; in the later parts of a file that is read in parts it is the
             byte at which the record begins
    content: bytes, a row as a dictionary, or a Document; or Rejected, where there is nothing to parse
    called:  what names the file in the ids of its documents; "" is its name without folders, see ``name_record``
    """

    file: str
    line: int
    content: Any
    called: str = ""


def _find_nothing(name: str) -> None:
    return None


@dataclass(frozen=True)
class SourceFile:
    """A file to read: on a disk, behind a URL, or inside an archive.

    open:        opens its bytes as they are stored, from the start
    find_beside: finds another file of the same folder by its name; None where there is none
    size:        in bytes, as it is stored; 0 where it is not known
    is_link:     whether it is a link in an archive, which is not followed
    """

    name: str
    open: Callable[[], IO[bytes]]
    find_beside: Callable[[str], "SourceFile | None"] = _find_nothing
    size: int = 0
    is_link: bool = False


@dataclass(frozen=True)
class Reader:
    """The two halves of a reader, and which files it takes.

    read:              yields ``(line number, content)`` of a whole file, or of a part of it. It must be cheap, and hold
                       no more than a record at a time.
    parse:             makes documents of one record, or raises Rejected with the reason. It runs in a worker process.
    may_be_compressed: whether it opens its files with ``compression.open_source``
    split:             cuts a file, by its name and size in bytes, into parts that can be read apart
    names:             a pattern of the base names that this reader takes, whatever their suffix
    companions:        a pattern of the base names of files that are read together with those
    ignored:           a pattern of the base names of files beside those that hold no documents
    modules:           libraries that it imports
    """

    read: Callable[[SourceFile, FilePart | None], Iterator[tuple[int, Any]]]
    parse: Callable[[Record], list[Document]]
    may_be_compressed: bool = False
    split: Callable[[str, int], Sequence[FilePart | None]] | None = None
    names: str = ""
    companions: str = ""
    ignored: str = ""
    modules: tuple[str, ...] = field(default=())


def estimate_text(name: str, size: int) -> int:
    """Estimates how many bytes of text a file of this name and size holds."""
    return size * (EXPANSION if name.lower().endswith(PACKED) else 1)


def group_parts(sizes: Sequence[int]) -> list[FilePart]:
    """Cuts members of a file, of these sizes in bytes, into runs of about PART_BYTES together."""
    parts, begin, held = [], 0, 0
    for number, size in enumerate(sizes, 1):
        held += size
        if held >= PART_BYTES or number == len(sizes):
            parts.append(FilePart(begin, number))
            begin, held = number, 0
    return parts


def name_file(name: str) -> str:
    """Names a file without its folders, or the archives that it is in."""
    return os.path.basename(name.rpartition("::")[2])


def name_record(record: Record) -> str:
    """Names the file of a record as the ids of its documents do.

    That is the file's name, with as many of its folders as tell it from the other inputs, or as it has in its archive.
    A site has a thousand pages ``index.html``: with one id for all, all of them would be held out, or none.
    """
    return record.called or name_file(record.file)


def reject_too_long(what: str, size: int) -> Rejected:
    """Says that a record of ``size`` bytes is larger than MAX_RECORD_BYTES."""
    return Rejected(f"the {what} is larger than {MAX_RECORD_BYTES >> 20} MB: cut it into several documents", size)


def measure_content(content: Any) -> int:
    """Measures a record in bytes, be it accepted or rejected: as it stands in the file once that is decompressed.

    Of a row it is the values of all columns that were read, without what separates them.
    """
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


def pass_rest(file: IO[bytes]) -> int:
    """Reads a file on to its end, and count its bytes."""
    passed = 0
    while chunk := file.read(1 << 20):
        passed += len(chunk)
    return passed


def find_utf_16(file: IO[bytes]) -> bool:
    """Tells whether a file that stands at its start begins as UTF-16 does, with a byte order mark."""
    return file.peek(2)[:2] in _UTF_16  # type: ignore[attr-defined]  # all that open files return buffered ones


def reject_utf_16(size: int) -> Rejected:
    return Rejected("it is UTF-16, not UTF-8: convert it, such as with iconv -f UTF-16 -t UTF-8", size)
