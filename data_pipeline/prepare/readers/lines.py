"""Cuts files into lines, in bounded memory and in parts."""

import codecs
from collections.abc import Iterator
from typing import IO

from data_pipeline.prepare.document import Rejected

from . import reader
from .compression import is_compressed, open_source
from .reader import PART_BYTES, FilePart, SourceFile

UTF_16 = "it is not UTF-8 but UTF-16: convert it, such as with iconv"


def split_bytes(name: str, size: int, may_be_cut: bool = False) -> list[FilePart]:
    """Cuts a file into ranges of bytes; a compressed file only if it ``may_be_cut``, such as multistream bz2."""
    step = max(1, size) if is_compressed(name) and not may_be_cut else PART_BYTES
    return [FilePart(begin, min(begin + step, size)) for begin in range(0, max(1, size), step)]


def read_lines(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields each line that begins in the part and is not blank, with its number, or in later parts its byte offset."""
    with open_source(source) as file:
        begin, end = (part.begin, part.end) if part and not is_compressed(source.name) else (0, None)
        for number, (offset, line) in enumerate(cut_lines(file, begin, end), 1):
            if line is not None:
                yield offset if begin else number, line


def cut_lines(file: IO[bytes], begin: int, end: int | None) -> Iterator[tuple[int, bytes | Rejected | None]]:
    """Yields the lines that begin in [begin, end), each with the offset of its first byte; None for a blank line."""
    limit = reader.MAX_RECORD_BYTES
    if begin:
        file.seek(begin - 1)
        begin += _skip_line(file) - 1
    offset = begin
    while (end is None or offset < end) and (line := file.readline(limit + 1)):
        if not offset and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError(UTF_16)
        first, offset = offset, offset + len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            offset += _skip_line(file)
            yield first, reader.reject_too_long("line", offset - first)
        else:
            yield first, line if not line.isspace() else None


def _skip_line(file: IO[bytes]) -> int:
    """Reads to the end of the line; returns the number of bytes read."""
    skipped = 0
    while chunk := file.readline(1 << 20):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
