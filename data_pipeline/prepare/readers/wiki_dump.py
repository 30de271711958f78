"""``.xml``, mostly ``.xml.bz2``: a dump of a MediaWiki wiki, such as ``enwiki-20211101-pages-articles-multistream``.

A page is cut out of the file by its tags, without an XML parser: the rest of the file, and what a document type might
declare there, is never parsed, so no entity can grow. A page is parsed in a worker process.
"""

import bz2
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO
from xml.etree import ElementTree

from data_pipeline.prepare.document import Document, Omitted, Rejected, Unreadable

from . import reader as limits
from .compression import is_compressed, open_source
from .lines import split_bytes
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, name_file, name_record

_BEGIN, _END, _LAST = b"<page>", b"</page>", b"</mediawiki>"
_CHUNK = 1 << 20
_TAIL = 64  # bytes that are kept of what was searched: a tag may be cut in two
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # how each stream of a .bz2 file begins
_STREAM_BYTES = 10  # of that
_REDIRECT = re.compile(r"\s*#\s*(?:REDIRECT|WEITERLEITUNG|REDIRECTION|REDIRECCIÓN|ПЕРЕНАПРАВЛЕНИЕ)\b", re.I)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:(?!nota )[\w -]*disambig\w*|disamb|dab|hndis|geodis|numberdis|surname|given name"
    r"|set index(?: article)?|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua)\s*(?:\||\}\})",
    re.I,
)


def _is_multistream(name: str) -> bool:
    return name.lower().endswith(".bz2") and "multistream" in name_file(name)


def _split(name: str, size: int) -> list[FilePart]:
    """Cuts a dump, or one in bz2 streams of a hundred pages, into ranges of bytes as they are stored."""
    return split_bytes(name, size, _is_multistream(name))


def _read_pages(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields pages by number; in the later parts of a file, by a number that begins with the part's first byte."""
    begin = part.begin if part else 0
    with open_source(source) as file:
        start = file.read(4096)
    if b"<mediawiki" not in start:
        if not begin:
            yield 1, Unreadable("it is XML, and no MediaWiki dump", estimate_text(source.name, source.size))
        return
    if part and _is_multistream(source.name):
        with source.open() as packed:
            pages = _cut_pages(_decompress_streams(packed, part), 0, sys.maxsize, is_whole=False)
            yield from ((begin + number, page) for number, page in enumerate(pages, 1))
        return
    with open_source(source) as file:
        file.seek(begin) if begin else None
        end = part.end if part and not is_compressed(source.name) else sys.maxsize
        for number, page in enumerate(_cut_pages(iter(lambda: file.read(_CHUNK), b""), begin, end, True), 1):
            yield begin + number, page


def _decompress_streams(file: IO[bytes], part: FilePart) -> Iterator[bytes]:
    """Decompresss the bz2 streams that begin in a range of bytes."""
    file.seek(part.begin)
    data, at = b"", part.begin
    while not (match := _STREAM.search(data)):
        chunk = file.read(_CHUNK)
        if not chunk or at >= part.end:
            return
        kept = data[1 - _STREAM_BYTES :]
        at += len(data) - len(kept)
        data = kept + chunk
    data, at, last = data[match.start() :], at + match.start(), b""
    while at < part.end:
        decompressor = bz2.BZ2Decompressor()
        while not decompressor.eof:
            chunk = b""
            if decompressor.needs_input:
                chunk, data = data or file.read(_CHUNK), b""
                if not chunk:
                    raise EOFError("the dump is cut off")
                at += len(chunk)
            out = decompressor.decompress(chunk, _CHUNK)
            last = (last + out)[-_TAIL:]
            yield out
        data = decompressor.unused_data
        at -= len(data)
        if not data and not (data := file.read(_CHUNK)):
            if _LAST not in last:
                raise EOFError("the dump is cut off")
            return


def _cut_pages(chunks: Iterable[bytes], begin: int, end: int, is_whole: bool) -> Iterator[bytes | Rejected]:
    """Cuts pages out of the bytes of a dump.

    begin:    the byte at which ``chunks`` begin
    end:      the last page begins before this byte
    is_whole: whether the dump's end tag must stand at the end of ``chunks``

    Raises EOFError where the dump is cut off.
    """
    data, at, passing, passed = b"", begin, False, 0
    for chunk in chunks:
        data += chunk
        while True:
            start = 0 if passing else data.find(_BEGIN)
            if start < 0:
                at, data = at + len(data) - len(data[-_TAIL:]), data[-_TAIL:]
                break
            if not passing and at + start >= end:
                return
            stop = data.find(_END, start)
            if stop >= 0:
                if passing:
                    yield limits.reject_too_long("page", passed + stop + len(_END))
                else:
                    yield data[start : stop + len(_END)]
                at, data, passing = at + stop + len(_END), data[stop + len(_END) :], False
                continue
            at, data = at + start, data[start:]
            if passing or len(data) > limits.MAX_RECORD_BYTES:
                passed = (passed if passing else 0) + len(data) - len(data[-_TAIL:])
                at, data, passing = at + len(data) - len(data[-_TAIL:]), data[-_TAIL:], True
            break
    if passing:
        yield limits.reject_too_long("page", passed + len(data))
    if passing or _BEGIN in data or (is_whole and _LAST not in data):
        raise EOFError("the dump is cut off")


def _parse(record: Record) -> list[Document]:
    from .wiki_markup import extract_paragraphs

    try:
        page = ElementTree.fromstring(record.content)
    except ElementTree.ParseError as error:
        raise Rejected(f"not XML: {error}") from error
    title = page.findtext("title") or ""
    namespace = page.findtext("ns") or "0"
    text = page.findtext("revision[last()]/text") or ""  # a dump of all revisions begins with the oldest
    if namespace != "0":
        raise Omitted(f"not an article but a page of namespace {namespace}")
    if page.find("redirect") is not None or _REDIRECT.match(text):
        raise Omitted("a redirect")
    if title.endswith("(disambiguation)") or _DISAMBIGUATION.search(text):
        raise Omitted("a disambiguation")
    document_id = page.findtext("id") or f"{name_record(record)}:{record.line}"
    return [Document(document_id, title, extract_paragraphs(text), name_file(record.file))]


READER = Reader(_read_pages, _parse, may_be_compressed=True, split=_split, modules=("mwparserfromhell",))
