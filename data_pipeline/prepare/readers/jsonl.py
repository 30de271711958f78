"""``.jsonl``: a line is a document, ``{id?, title?, url?, paragraphs: [str]}`` or ``{..., text: str}``."""

from collections.abc import Iterator
from typing import Any

from data_pipeline.core.files import parse_json
from data_pipeline.prepare.document import DOCUMENT_IDS, Document, Rejected, note_unread_ids

from .lines import read_lines, split_bytes
from .reader import FilePart, Reader, Record, SourceFile
from .text import decode, split_paragraphs


def parse_fields(fields: Any, record: Record) -> list[Document]:
    """Returns the document of a JSON object or a table's row. Raises Rejected if it has no text."""
    if not isinstance(fields, dict):
        raise Rejected("not a JSON object")
    paragraphs, text = fields.get("paragraphs"), fields.get("text")
    if isinstance(paragraphs, list) and (paragraphs or not isinstance(text, str)):
        if not all(isinstance(p, str) for p in paragraphs):
            raise Rejected('"paragraphs" has an element that is not a string')
    elif isinstance(text, str):
        paragraphs = split_paragraphs(text)
    else:
        raise Rejected('neither "paragraphs" (a list of strings) nor "text" (a string)')
    title, url = (str(fields.get(name) or "") for name in ("title", "url"))
    if not (name := find_id(fields)):
        note_unread_ids("documents are named by file and line", tuple(fields), DOCUMENT_IDS)
    return [Document(name or f"{record.name}:{record.line}", title, paragraphs, record.source, url=url)]


def find_id(fields: dict[str, Any]) -> str:
    """Returns the id of a document; "" if it has none."""
    for value in (fields[name] for name in DOCUMENT_IDS if name in fields):
        if isinstance(value, float) and value.is_integer():  # pandas writes 12.0 if some ids are missing
            value = int(value)
        if isinstance(value, str | int) and value != "":
            return str(value)
    return ""


def load_json(content: bytes) -> Any:
    """Parses JSON. Raises Rejected if it is invalid, or not UTF-8."""
    try:
        return parse_json(decode(content))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}") from error


def read_json_lines(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields lines, see ``read_lines``. Raises EOFError if the last one is cut off."""
    for number, line in read_lines(source, part):
        if isinstance(line, bytes):
            check_end(line)
        yield number, line


def check_end(line: bytes) -> None:
    """Raises EOFError for a line without a line end that is not JSON: the file was cut off there."""
    if line.endswith(b"\n"):
        return
    try:
        load_json(line)
    except Rejected as reason:
        raise EOFError(f"its last line is cut off: {reason}") from reason


READER = Reader(
    read_json_lines,
    lambda record: parse_fields(load_json(record.content), record),
    may_be_compressed=True,
    split=split_bytes,
)
