"""``.jsonl``: a line is a document, ``{id?, title?, paragraphs: [str]}`` or ``{id?, title?, text: str}``."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from .compression import open_decompressed
from .reader import Reader, Record
from .text import decode, split_paragraphs


def parse_fields(fields: Any, record: Record) -> list[Document]:
    """Make a document of the fields of a JSON object, or of a table's row, which has the same names.

    A document without an id is named by its file and line. Raises Rejected where the fields hold no text.
    """
    if not isinstance(fields, dict):
        raise Rejected("not a JSON object")
    paragraphs, text = fields.get("paragraphs"), fields.get("text")
    if isinstance(paragraphs, list):
        if not all(isinstance(p, str) for p in paragraphs):
            raise Rejected('"paragraphs" holds something that is not a string')
    elif isinstance(text, str):
        paragraphs = split_paragraphs(text)
    else:
        raise Rejected('neither "paragraphs" (a list of strings) nor "text" (a string)')
    name = os.path.basename(record.file)
    own_id = fields.get("id")
    has_id = own_id is not None and isinstance(own_id, str | int) and str(own_id) != ""
    title = fields.get("title")
    return [Document(str(own_id) if has_id else f"{name}:{record.line}", str(title or ""), paragraphs, name)]


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_decompressed(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _parse(record: Record) -> list[Document]:
    try:
        fields = json.loads(decode(record.content))
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}") from error
    return parse_fields(fields, record)


READER = Reader(_read_lines, _parse, may_be_compressed=True)
