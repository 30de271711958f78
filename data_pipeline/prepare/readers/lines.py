"""Cutting files of lines: in bounded memory, and in parts."""

from collections.abc import Iterator
from typing import IO

from data_pipeline.prepare.document import Rejected

from . import reader
from .compression import is_compressed, open_source
from .reader import PART_BYTES, FilePart, SourceFile, find_utf_16, pass_rest, reject_utf_16


def split_bytes(name: str, size: int, may_be_cut: bool = False) -> list[FilePart]:
    """Cuts a file into ranges of bytes; a compressed file is one part, unless it ``may_be_cut`` too."""
    step = max(1, size) if is_compressed(name) and not may_be_cut else PART_BYTES
    return [FilePart(begin, min(begin + step, size)) for begin in range(0, max(1, size), step)]


def read_lines(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields the lines that are not blank, each with its number, or with its first byte in all parts but the first.

    A line belongs to the part in which it begins. One that is longer than MAX_RECORD_BYTES comes as Rejected, and so
    does the whole of a file in UTF-16, in whose first part it is.
    """
    with open_source(source) as file:
        if is_compressed(source.name) or part is None or part.begin == 0:
            end = None if part is None or is_compressed(source.name) else part.end
            lines = cut_lines(file, 0, end)
            yield from ((number, line) for number, (_, line) in enumerate(lines, 1) if line is not None)
            return
        if find_utf_16(file):
            return
        file.seek(part.begin - 1)
        begin = part.begin - 1 + _pass_line(file)
        yield from ((at, line) for at, line in cut_lines(file, begin, part.end) if line is not None)


def cut_lines(file: IO[bytes], begin: int, end: int | None) -> Iterator[tuple[int, bytes | Rejected | None]]:
    """Yields the byte at which each line begins, and the line, which is None where it is blank.

    begin: the byte at which ``file`` stands
    end:   the last line begins before this byte; None for the end of the file
    """
    limit = reader.MAX_RECORD_BYTES
    at = begin
    if not begin and find_utf_16(file):
        yield 0, reject_utf_16(pass_rest(file))
        return
    while end is None or at < end:
        line = file.readline(limit + 1)
        if not line:
            return
        here, at = at, at + len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            at += _pass_line(file)
            yield here, reader.reject_too_long("line", at - here)
        else:
            yield here, line if not line.isspace() else None


def _pass_line(file: IO[bytes]) -> int:
    passed = 0
    while chunk := file.readline(1 << 20):
        passed += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return passed
