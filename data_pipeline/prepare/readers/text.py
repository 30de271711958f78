"""``.txt``: a file is a document, and blank lines separate its paragraphs."""

from collections.abc import Iterator

from data_pipeline.prepare.document import Document, Rejected

from . import reader
from .compression import open_source
from .reader import Part, Reader, Record, Source, name_file, name_record

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def decode(content: bytes) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises Rejected where it is not UTF-8."""
    if content.startswith(_UTF_16):
        raise Rejected("not UTF-8 but UTF-16: convert it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start}): convert it") from error


def split_paragraphs(text: str) -> list[str]:
    """Split running text at blank lines, or at every line end where there are no blank lines."""
    lines = text.splitlines()
    if all(line.strip() for line in lines):
        return lines
    return "\n".join(line if line.strip() else "" for line in lines).split("\n\n")


def read_whole(source: Source, part: Part | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yield a whole file as one record, or Rejected where it is larger than a document can be."""
    with open_source(source) as file:
        content = file.read(reader.MAX_RECORD_BYTES + 1)
    yield 1, content if len(content) <= reader.MAX_RECORD_BYTES else reader.reject_too_long("file")


def name_title(record: Record) -> tuple[str, str]:
    """Name a document that is a file: its id, and its title without folders and suffix."""
    name = name_file(record.file)
    return name_record(record), name.rpartition(".")[0] or name


def _parse(record: Record) -> list[Document]:
    name, title = name_title(record)
    text = decode(record.content)
    if text.count("\x00") > len(text) // 100:
        raise Rejected("not text but binary: it holds NULs")
    return [Document(name, title, split_paragraphs(text), name_file(record.file))]


READER = Reader(read_whole, _parse, may_be_compressed=True)
