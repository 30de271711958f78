"""``wikiextractor``: what WikiExtractor writes, ``wiki_00`` and so on: ``<doc id= title=>`` blocks, or JSON lines."""

import html
import re
from collections.abc import Iterator

from data_pipeline.prepare.document import Document, Rejected

from . import reader as limits
from .compression import open_source
from .jsonl import check_end, load_json
from .lines import cut_lines
from .reader import FilePart, Reader, Record, SourceFile, name_file, name_record
from .text import decode
from .wiki_markup import drop_lead_in

_HEAD = re.compile(r'<doc id="([^"]*)"(?: url="[^"]*")?(?: title="([^"]*)")?[^>]*>\n?')
_NOT_TEXT = re.compile(  # what is left of headings and lists, and paragraphs with a formula
    r"^(?:Section::::|BULLET::::|[-*#:]+ ?\S{0,3}$)|\bformula_\d"
)


def _read_blocks(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields a block, or a line of JSON, with the number of its first line."""
    block: list[bytes] = []
    first = size = 0
    with open_source(source) as file:
        for number, (_, line) in enumerate(cut_lines(file, 0, None), 1):
            if isinstance(line, Rejected):
                yield number, line
                continue
            line = line or b"\n"
            if not block and not line.startswith((b"<doc ", b"<doc>")):
                is_json = line.startswith(b"{")
                if is_json:
                    check_end(line)
                if not line.isspace():
                    yield number, line if is_json else Rejected("not inside of <doc ...> and </doc>", len(line))
                continue
            first, size = (first, size) if block else (number, 0)
            size += len(line)
            if size <= limits.MAX_RECORD_BYTES:
                block.append(line)
            if line.startswith(b"</doc>"):
                whole = size <= limits.MAX_RECORD_BYTES
                yield first, b"".join(block) if whole else limits.reject_too_long("document", size)
                block = []
    if block:
        raise EOFError(f"the document that begins in line {first} has no </doc>")


def _parse(record: Record) -> list[Document]:
    if record.content.startswith(b"{"):
        fields = load_json(record.content)
        if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
            raise Rejected('no "text" (a string)')
        document_id, title, text = str(fields.get("id") or ""), str(fields.get("title") or ""), fields["text"]
    else:
        block = decode(record.content)
        head = _HEAD.match(block)
        if not head:
            raise Rejected("<doc ...> has no id")
        document_id, title = head[1], html.unescape(head[2] or "")
        text = block[head.end() :].rpartition("</doc>")[0]
    lines = [line for line in text.splitlines() if line.strip() and not _NOT_TEXT.search(line)]
    if lines and (lines[0].strip() == title or not title):  # the first line is the title
        title = lines.pop(0).strip()
    paragraphs = [paragraph for paragraph in map(drop_lead_in, lines) if paragraph]
    return [Document(document_id or f"{name_record(record)}:{record.line}", title, paragraphs, name_file(record.file))]


READER = Reader(_read_blocks, _parse, may_be_compressed=True, names=r"wiki_\d+")
