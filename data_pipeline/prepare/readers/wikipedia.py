"""Wikipedia: dumps of MediaWiki (``.xml``, mostly ``.xml.bz2``), and the output of WikiExtractor.

Pages are cut out of a dump at lines with <page> tags, without an XML parser, so that no DTD is parsed: its entities
could expand without limit. WikiExtractor writes ``wiki_00`` and so on: ``<doc id= title=>`` blocks, or JSON.
"""

import bz2
import html
import io
import re
import sys
from collections.abc import Iterator
from typing import IO

from data_pipeline.prepare.document import Document, Omitted, Rejected, Unreadable

from . import reader
from .compression import is_compressed, open_source
from .jsonl import check_end, load_json
from .lines import UTF_16, cut_lines, split_bytes
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, name_file
from .text import decode, parse_xml
from .wiki_markup import choose_variants, drop_lead_in, extract_paragraphs

_END_TAG = b"</mediawiki>"
_CHUNK = 1 << 16
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # the ten bytes with which each stream of a .bz2 file begins
_REDIRECT = re.compile(r"\s*#\s*(?:REDIRECT|WEITERLEITUNG|REDIRECTION|REDIRECCIÓN|ПЕРЕНАПРАВЛЕНИЕ)\b", re.I)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:(?!nota )[\w -]*disambig\w*|disamb|dab|hndis|geodis|numberdis|surname|given name"
    r"|set index(?: article)?|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua)\s*(?:\||\}\})",
    re.I,
)
_HEAD = re.compile(r'<doc id="([^"]*)"(?: url="[^"]*")?(?: title="([^"]*)")?[^>]*>\n?')
_NOT_TEXT = re.compile(  # remains of headings and lists, and paragraphs with a formula
    r"^(?:Section::::|BULLET::::|[-*#:]+ ?\S{0,3}$)|\bformula_\d"
)


def _cut_blocks(
    file: IO[bytes], begin: int, starts: tuple[bytes, ...], stop: bytes
) -> Iterator[tuple[int, int, bytes | Rejected, bool]]:
    """Cuts a file into blocks, from a line that starts with one of ``starts`` to one that starts with ``stop``.

    Yields the line number and byte offset of each block or line between blocks, its content, and whether it is a block.
    Raises EOFError if the last block has no end.
    """
    block: list[bytes] = []
    number = offset = size = 0
    for line_number, (line_offset, content) in enumerate(cut_lines(file, begin, None), 1):
        line = b"\n" if content is None else content  # None: a blank line
        tag = b"" if isinstance(line, Rejected) else line.lstrip()
        if not block and not tag.startswith(starts):
            yield line_number, line_offset, line, False
            continue
        if not block:
            number, offset, size = line_number, line_offset, 0
        size += line.size if isinstance(line, Rejected) else len(line)
        if isinstance(line, bytes) and size <= reader.MAX_RECORD_BYTES:
            block.append(line)
        if tag.startswith(stop) or tag.rstrip().endswith(stop):
            is_long = size > reader.MAX_RECORD_BYTES
            yield number, offset, reader.reject_too_long("page", size) if is_long else b"".join(block), True
            block = []
    if block:
        raise EOFError(f"it is cut off: the page that begins in line {number} has no end")


# Dumps ----------------------------------------------------------------------------------------------------


def _split(name: str, size: int) -> list[FilePart]:
    """Cuts an uncompressed or multistream .bz2 dump into ranges of stored bytes."""
    return split_bytes(name, size, _is_multistream(name))


def _is_multistream(name: str) -> bool:
    return name.lower().endswith(".bz2") and "multistream" in name_file(name)


def _read_pages(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields each page with its number in the part, from 1, plus the part's first byte, so that numbers are unique."""
    begin = part.begin if part else 0
    with open_source(source) as file:
        start = file.read(4096)
    if b"<mediawiki" not in start:
        if not begin:
            reason = UTF_16 if b"\0" in start else "it is XML, but not a MediaWiki dump"
            yield 1, Unreadable(reason, estimate_text(source.name, source.size))
        return
    if part and _is_multistream(source.name):
        streams = (io.BufferedReader(io.BytesIO(stream)) for stream in _read_streams(source, part))
        yield from enumerate((page for stream in streams for page in _cut_pages(stream, 0, None)), begin + 1)
        return
    end = part.end if part and not is_compressed(source.name) else sys.maxsize
    with open_source(source) as file:
        yield from enumerate(_cut_pages(file, begin, end), begin + 1)


def _read_streams(source: SourceFile, part: FilePart) -> Iterator[bytes]:
    """Yields, decompressed, each bz2 stream that begins in a part."""
    with source.open() as file:
        size, stream = file.seek(0, io.SEEK_END), b""
        offset, data = file.seek(part.begin), b""
        while not (match := _STREAM.search(data)):
            if offset >= part.end or not (chunk := file.read(_CHUNK)):
                return
            data = data[-9:]  # a stream's first ten bytes may lie in two chunks
            offset, data = file.tell() - len(chunk) - len(data), data + chunk
        offset += match.start()
        while offset < min(part.end, size):
            file.seek(offset)
            stream, decompressor = b"", bz2.BZ2Decompressor()
            while not decompressor.eof:
                if not (chunk := file.read(_CHUNK)):
                    raise EOFError("the dump is cut off")
                stream += (data := decompressor.decompress(chunk, reader.MAX_RECORD_BYTES))
                source.meter.count_unpacked(len(data))
                if len(stream) >= reader.MAX_RECORD_BYTES:
                    raise OSError(f"a stream of the dump is larger than {reader.MAX_RECORD_BYTES >> 20} MB")
            yield stream
            offset = file.tell() - len(decompressor.unused_data)
        if offset == size and _END_TAG not in stream:
            raise EOFError("the dump is cut off")


def _cut_pages(file: IO[bytes], begin: int, end: int | None) -> Iterator[bytes | Rejected]:
    """Yields the pages that begin before the byte ``end``. Raises EOFError if the dump is cut off.

    end: None for a bz2 stream: the dump's end tag is only in the last one
    """
    has_end = begin > 0  # a part in which only blank lines begin, or none, says nothing of the dump's end
    for _, offset, content, is_page in _cut_blocks(file, begin, (b"<page>",), b"</page>"):
        if end is not None and offset >= end:
            return
        if is_page or isinstance(content, Rejected):
            yield content
            has_end = False
        elif content.strip():
            has_end = _END_TAG in content
    if end is not None and not has_end:
        raise EOFError("the dump is cut off")


def _parse_page(record: Record) -> list[Document]:
    page = parse_xml(record.content)
    title = page.findtext("title") or ""
    namespace = page.findtext("ns") or "0"
    text = page.findtext("revision[last()]/text") or ""  # a dump of all revisions begins with the oldest
    if namespace != "0":
        raise Omitted(f"not an article but a page of namespace {namespace}")
    if page.find("redirect") is not None or _REDIRECT.match(text):
        raise Omitted("a redirect")
    if title.endswith("(disambiguation)") or _DISAMBIGUATION.search(text):
        raise Omitted("a disambiguation")
    document_id = page.findtext("id") or f"{record.name}:{record.line}"
    return [Document(document_id, title, extract_paragraphs(text), record.source, is_parsed=True)]


# WikiExtractor --------------------------------------------------------------------------------------------


def _read_blocks(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields each block, or line of JSON, with the number of its first line."""
    with open_source(source) as file:
        for number, _, content, is_block in _cut_blocks(file, 0, (b"<doc ", b"<doc>"), b"</doc>"):
            if is_block or isinstance(content, Rejected):
                yield number, content
            elif content.startswith(b"{"):
                check_end(content)
                yield number, content
            elif not content.isspace():
                yield number, Rejected("not between <doc ...> and </doc>", len(content))


def _parse_block(record: Record) -> list[Document]:
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
    lines = [line for line in choose_variants(text).splitlines() if line.strip() and not _NOT_TEXT.search(line)]
    if lines and (lines[0].strip() == title or not title):  # the first line is the title
        title = lines.pop(0).strip()
    paragraphs = [paragraph for paragraph in map(drop_lead_in, lines) if paragraph]
    return [Document(document_id or f"{record.name}:{record.line}", title, paragraphs, record.source)]


DUMP = Reader(_read_pages, _parse_page, True, _split, r".+\.xml-p\d+p\d+", modules=("mwparserfromhell",))
EXTRACTED = Reader(_read_blocks, _parse_block, may_be_compressed=True, names=r"wiki_\d+")
