"""``.jsonl``: a line is a document, ``{id?, title?, paragraphs: [str]}`` or ``{id?, title?, text: str}``."""

import json
from collections.abc import Iterator
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from .lines import read_lines, split_bytes
from .reader import FilePart, Reader, Record, SourceFile
from .text import decode, split_paragraphs


def parse_fields(fields: Any, record: Record) -> list[Document]:
    """Returns the document of a JSON object, or of a table's row. Raises Rejected where the fields hold no text."""
    if not isinstance(fields, dict):
        raise Rejected("not a JSON object")
    paragraphs, text = fields.get("paragraphs"), fields.get("text")
    if isinstance(paragraphs, list) and (paragraphs or not isinstance(text, str)):
        if not all(isinstance(p, str) for p in paragraphs):
            raise Rejected('"paragraphs" holds something that is not a string')
    elif isinstance(text, str):
        paragraphs = split_paragraphs(text)
    else:
        raise Rejected('neither "paragraphs" (a list of strings) nor "text" (a string)')
    title = fields.get("title")
    name = find_id(fields) or f"{record.name}:{record.line}"
    return [Document(name, str(title or ""), paragraphs, record.source)]


def find_id(fields: dict[str, Any]) -> str:
    """Returns the id of a document; "" where it has none."""
    document_id = fields.get("id")
    if isinstance(document_id, float) and document_id.is_integer():  # as pandas writes 12 where some ids are missing
        document_id = int(document_id)
    return str(document_id) if isinstance(document_id, str | int) else ""


def load_json(content: bytes) -> Any:
    """Parses JSON. Raises Rejected where it is none, or not UTF-8."""
    try:
        return json.loads(decode(content))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}") from error


def read_json_lines(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields lines, see ``read_lines``. Raises EOFError where the last one is cut off."""
    for number, line in read_lines(source, part):
        if isinstance(line, bytes):
            check_end(line)
        yield number, line


def check_end(line: bytes) -> None:
    """Raises EOFError where a line is a file's last and is cut off: others may be missing behind it."""
    if line.endswith(b"\n"):
        return
    try:
        load_json(line)
    except Rejected as reason:
        raise EOFError(f"its last line has no end, and is {reason}") from reason


def _parse(record: Record) -> list[Document]:
    return parse_fields(load_json(record.content), record)


READER = Reader(read_json_lines, _parse, may_be_compressed=True, split=split_bytes)
