"""``.txt``: a file is a document, and blank lines separate its paragraphs.

A file above MAX_RECORD_BYTES is a collection: it is read as a stream, and cut into documents of about PIECE_BYTES, each
of which ends at a blank line, or where there is none at the end of a line, of a word or of a character.
"""

import re
from collections.abc import Iterator
from typing import IO

from data_pipeline.prepare.document import Document, Rejected

from . import reader
from .compression import is_compressed, open_source
from .lines import split_bytes
from .reader import (
    FilePart,
    Reader,
    Record,
    SourceFile,
    find_utf_16,
    name_file,
    name_record,
    pass_rest,
    reject_utf_16,
)

PIECE_BYTES = 1 << 20  # of a text that is too long for one document: about a book
WINDOW_BYTES = 1 << 16  # behind them, in which an end is looked for
_ENDS = [  # where a text may be cut, the best first
    re.compile(rb"\n[ \t\r]*\n\s*"),
    re.compile(rb"\n"),
    re.compile(rb"[ \t]"),
    re.compile(rb"(?=[^\x80-\xbf])"),  # before the first byte of a character
]


def decode(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte order mark. Raises Rejected where it is not UTF-8."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise reject_utf_16(len(content))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start}): convert it") from error


def split_paragraphs(text: str) -> list[str]:
    """Splits running text at blank lines, or at every line end where there are no blank lines."""
    lines = text.strip().splitlines()  # a blank line at the end separates nothing
    if all(line.strip() for line in lines):
        return lines
    return "\n".join(line if line.strip() else "" for line in lines).split("\n\n")


def read_whole(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields a whole file as one record, or Rejected where it is larger than a document can be."""
    with open_source(source) as file:
        content = file.read(reader.MAX_RECORD_BYTES + 1)
        rest = pass_rest(file) if len(content) > reader.MAX_RECORD_BYTES else 0
    yield 1, reader.reject_too_long("file", len(content) + rest) if rest else content


def _read_text(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | dict | Rejected]]:
    """Yields a text as one record, or in pieces, ``{"text": bytes}``, each with the number of its first byte from 1."""
    with open_source(source) as file:
        if find_utf_16(file):
            if part is None or not part.begin:
                yield 1, reject_utf_16(pass_rest(file))
            return
        if part is None or is_compressed(source.name):
            content = file.read(reader.MAX_RECORD_BYTES + 1)
            if len(content) <= reader.MAX_RECORD_BYTES:
                yield 1, content
                return
            yield from _cut_pieces(content, file, 0, None)
        else:
            begin, end = (_find_boundary(file, at) for at in (part.begin, part.end))
            file.seek(begin)
            yield from _cut_pieces(b"", file, begin, end)


def _cut_pieces(data: bytes, file: IO[bytes], begin: int, end: int | None) -> Iterator[tuple[int, dict]]:
    """Cuts the text from byte ``begin`` to ``end`` into pieces; ``data`` is what was already read of it."""
    at = begin
    while True:
        wanted = PIECE_BYTES + WINDOW_BYTES - len(data)
        data += file.read(max(0, wanted if end is None else min(wanted, end - at - len(data))))
        if not data:
            return
        window = data[PIECE_BYTES : PIECE_BYTES + WINDOW_BYTES]
        size = PIECE_BYTES + _find_end(window) if len(window) == WINDOW_BYTES else len(data)  # the rest is one piece
        yield at + 1, {"text": data[:size]}
        at, data = at + size, data[size:]


def _find_boundary(file: IO[bytes], at: int) -> int:
    """Finds where the first piece of a part begins that is cut at the byte ``at``: its neighbour finds the same."""
    if not at:
        return 0
    file.seek(at)
    return at + _find_end(file.read(WINDOW_BYTES))


def _find_end(window: bytes) -> int:
    """Finds the first byte of a window that may begin another document; its length where there is none."""
    ends = (pattern.search(window) for pattern in _ENDS)
    return next((end.end() for end in ends if end), len(window))


def _split(name: str, size: int) -> list[FilePart | None]:
    """Cuts a file that is too long for one document into ranges of bytes; any other is read as a whole."""
    if is_compressed(name) or size <= reader.MAX_RECORD_BYTES:
        return [None]
    return list(split_bytes(name, size))


def name_title(record: Record) -> tuple[str, str]:
    """Names a document that is a file: its id, and its title without folders and suffix."""
    name = name_file(record.file)
    return name_record(record), name.rpartition(".")[0] or name


def _parse(record: Record) -> list[Document]:
    name, title = name_title(record)
    is_part = isinstance(record.content, dict)
    text = decode(record.content["text"] if is_part else record.content)
    if text.count("\x00") > len(text) // 100:
        raise Rejected("not text but binary: it holds NULs")
    if text.startswith(("%PDF-", "{\\rtf")):  # which may hold nothing but ASCII
        raise Rejected("not text but PDF or RTF: name it .pdf, or convert it")
    document_id = f"{name}:{record.line}" if is_part else name
    return [Document(document_id, title, split_paragraphs(text), name_file(record.file), is_part=is_part)]


READER = Reader(_read_text, _parse, may_be_compressed=True, split=_split)
