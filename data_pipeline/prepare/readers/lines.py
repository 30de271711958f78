"""Cutting files of lines: in bounded memory, and in parts."""

from collections.abc import Iterator
from typing import IO

from data_pipeline.prepare.document import Rejected

from . import reader
from .compression import is_compressed, open_source
from .reader import PART_BYTES, FilePart, SourceFile


def split_bytes(name: str, size: int, may_be_cut: bool = False) -> list[FilePart]:
    """Cuts a file into ranges of bytes; a compressed file is one part, unless it ``may_be_cut`` too."""
    step = max(1, size) if is_compressed(name) and not may_be_cut else PART_BYTES
    return [FilePart(begin, min(begin + step, size)) for begin in range(0, max(1, size), step)]


def read_lines(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields the lines that are not blank and begin in the part, by number, or in later parts by their first byte."""
    with open_source(source) as file:
        begin, end = (part.begin, part.end) if part and not is_compressed(source.name) else (0, None)
        for number, (at, line) in enumerate(cut_lines(file, begin, end), 1):
            if line is not None:
                yield at if begin else number, line


def cut_lines(file: IO[bytes], begin: int, end: int | None) -> Iterator[tuple[int, bytes | Rejected | None]]:
    """Yields the lines that begin from the byte ``begin`` to before ``end``, each with its first byte; None for a blank
    line."""
    limit = reader.MAX_RECORD_BYTES
    if begin:
        file.seek(begin - 1)
        begin += _pass_line(file) - 1
    at = begin
    while (end is None or at < end) and (line := file.readline(limit + 1)):
        first, at = at, at + len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            at += _pass_line(file)
            yield first, reader.reject_too_long("line", at - first)
        else:
            yield first, line if not line.isspace() else None


def _pass_line(file: IO[bytes]) -> int:
    """Reads on to the end of a line, and counts its bytes."""
    passed = 0
    while chunk := file.readline(1 << 20):
        passed += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return passed
