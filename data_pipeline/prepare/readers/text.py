"""``.txt``: a file is a document, and blank lines separate its paragraphs."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.prepare.document import Document, Rejected

from .compression import open_decompressed
from .reader import Reader, Record


def decode(content: bytes) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises Rejected where it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start})") from error


def split_paragraphs(text: str) -> list[str]:
    """Split running text at blank lines, or at every line end where there are no blank lines."""
    lines = text.splitlines()
    if all(line.strip() for line in lines):
        return lines
    return "\n".join(line if line.strip() else "" for line in lines).split("\n\n")


def _read_whole(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_decompressed(path) as file:
        yield 1, file.read()


def _parse(record: Record) -> list[Document]:
    path = Path(record.file)
    return [Document(path.name, path.stem, split_paragraphs(decode(record.content)), path.name)]


READER = Reader(_read_whole, _parse, may_be_compressed=True)
