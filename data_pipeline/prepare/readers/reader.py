"""What a reader is: the type of each format's ``READER``, and of the records that it yields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.prepare.document import Document


@dataclass(frozen=True)
class Part:
    """A part of a file, for one task. What its two numbers mean is the reader's own: bytes, row groups, members."""

    begin: int
    end: int


@dataclass(frozen=True)
class Record:
    """One raw record of a file.

    content: bytes, a row as a dictionary, or a Document; or Rejected, where the file could not be read on
    """

    file: str
    line: int
    content: Any


@dataclass(frozen=True)
class Reader:
    """The two halves of a reader, and whether its files may be compressed.

    read:  yields ``(line number, content)``. It runs in the main process and must be cheap.
    parse: makes documents of one record, or raises Rejected with the reason. It runs in a worker process.
    """

    read: Callable[[Path], Iterator[tuple[int, Any]]]
    parse: Callable[[Record], list[Document]]
    may_be_compressed: bool = False
