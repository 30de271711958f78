"""``.html``, and the crawl archives ``.warc`` and ``.arc``, such as CC-News: an HTML page is a document.

The main text of a page is kept, without menus, headings, tables and (see ``has_code``) code. HTTP requests, images and
error responses are counted, but are not documents. The id of a crawled page is its URL, so that equal copies are held
out together.
"""

import contextlib
import io
import logging
import re
from collections.abc import Iterator, Set
from functools import partial
from typing import IO, TYPE_CHECKING

from data_pipeline.core.errors import quote_error
from data_pipeline.prepare.cleaning import LINE_END, normalise
from data_pipeline.prepare.document import Document, Omitted, Rejected

from . import reader
from .compression import open_source
from .reader import FilePart, Reader, Record, SourceFile
from .text import ISO_2022, read_whole

if TYPE_CHECKING:
    from lxml.etree import _Element
    from warcio.archiveiterator import ArchiveIterator
    from warcio.recordloader import ArcWarcRecord

_KEPT, _DROPPED = {"p", "item", "quote"}, {"head", "table", "code", "graphic"}  # tags of trafilatura
_INLINE = {"p", "item", "quote", "hi", "ref"}
_READINGS = ["//rt", "//rp"]  # small letters above Chinese characters, which say how those are read
_LINE_BREAKS = re.compile(r"<br\b[^<>]*>(?:(?:\s|&nbsp;)*<br\b[^<>]*>)+", re.I)
_BLANK_LINE = "\ufdd0"  # a noncharacter, which trafilatura keeps; it merges breaks, and line ends become spaces
_PAGES = ("text/html", "application/xhtml+xml")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?(?!iso-8859-1\b)([\w-]+)", re.I)  # Latin-1 is often stated wrongly
_NOT_LATIN = re.compile(rb"^.{,2048}(?i:charset|encoding)|[\x80-\xff]{4}", re.S)  # another is stated; Greek or Chinese


def _parse_page(record: Record, keep_code: bool = False) -> list[Document]:
    """Makes a document of the title and the paragraphs of a page, by trafilatura. Raises Rejected if it has no text."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs each page without text

    page, is_crawled = record.content, isinstance(record.content, dict)
    content, url = (page["page"], page["url"] or None) if is_crawled else (page, None)
    html = _LINE_BREAKS.sub(f" {_BLANK_LINE} ", LINE_END.sub("", _decode_page(content)))
    extracted = trafilatura.bare_extraction(
        html, url=url, include_comments=False, include_tables=False, with_metadata=True, prune_xpath=_READINGS
    )
    if extracted is None or isinstance(extracted, dict):
        raise Rejected("no running text was found in the page")
    for quote in extracted.body.xpath("//quote[not(p) and (parent::p or parent::item or parent::hi or parent::ref)]"):
        quote.tag = "hi"
    code_blocks = 0
    for element in [code for code in extracted.body.iter("code") if code.getparent().tag != "code"]:
        before, text, tail = element.getprevious(), "".join(element.itertext()), element.tail
        is_block = element.getparent().tag not in _INLINE or "\n" in text
        code_blocks += is_block
        if keep_code or not is_block:
            element.clear()
            element.tag, element.text, element.tail = "hi", f" {text} " if is_block else text, tail
            if is_block and before is not None and before.tag in _KEPT:
                before.append(element)
    paragraphs = collect_paragraphs(extracted.body, _KEPT, _DROPPED, "lb")
    name = url or (f"{record.name}:{record.line}" if is_crawled else record.name)
    return [Document(name, extracted.title or "", paragraphs, record.source, is_parsed=True, code_blocks=code_blocks)]


def _decode_page(content: bytes) -> str:
    """Decodes a page as UTF-8, if few of its characters are broken, or in the encoding that it seems to have."""
    from trafilatura.utils import decode_file

    text = content.decode("iso2022_jp_2" if ISO_2022 in content else "utf-8", "replace")
    num_broken, num_valid = text.count("\ufffd"), len(re.findall("[^\0-\x7f\ufffd]", text))
    return decode_file(content) if num_broken > num_valid / 10 else text


def collect_paragraphs(body: "_Element", blocks: Set[str], dropped_tags: Set[str], line_break: str) -> list[str]:
    """Returns the paragraphs of an element; a new one begins before and after each block and dropped element."""
    from lxml import etree

    paragraphs: list[list[str]] = [[]]
    dropped_depth = 0
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        if element.tag in blocks or element.tag in dropped_tags:
            paragraphs.append([])
        is_start = event == "start"
        if element.tag in dropped_tags:
            dropped_depth += 1 if is_start else -1
        if is_start and element.tag == line_break:
            paragraphs[-1].append(" ")
        if not dropped_depth and (is_start or element is not body):
            paragraphs[-1].append((element.text if is_start else element.tail) or "")
    return [p for parts in paragraphs for text in "".join(parts).split(_BLANK_LINE) if (p := normalise(text))]


# Crawls ---------------------------------------------------------------------------------------------------


class _Brotli:
    """Adapts brotli to warcio, whose own adapter sets an attribute that brotli's decompressor does not have."""

    unused_data = b""

    def __init__(self) -> None:
        from brotli import Decompressor  # type: ignore[import-untyped]

        self.stream = Decompressor()
        self.decompress = partial(self.stream.process, output_buffer_limit=reader.MAX_RECORD_BYTES + 1)

    @property
    def eof(self) -> bool:
        return self.stream.is_finished()


def _read_responses(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields the URL and content of each page. Raises OSError at a record that is broken or cut off."""
    from warcio.archiveiterator import ArchiveIterator
    from warcio.bufferedreaders import BufferedReader

    BufferedReader.DECOMPRESSORS["br"] = _Brotli
    with open_source(source) as file:
        first = file.peek(16)  # type: ignore[attr-defined]  # open_source returns a BufferedReader
        if first and not first.lstrip().startswith((b"WARC/", b"filedesc:")):
            raise OSError("it does not begin with a record of a WARC or an ARC")
        yield from enumerate(_read_records(ArchiveIterator(_Stream(file))), 1)


def _read_records(records: "ArchiveIterator") -> Iterator[dict | Rejected]:
    """Yields the content of each record. Raises EOFError if the last one is cut off."""
    last, errors = None, 0
    while True:
        with contextlib.redirect_stderr(io.StringIO()):  # warcio prints warnings, which ``err_count`` counts
            record = next(records, None)
        if last is not None and getattr(last.raw_stream, "limit", 0) > 0:
            raise EOFError("the last record is cut off")
        if records.err_count > errors:
            errors = records.err_count
            yield Rejected("the record before this one is not as long as its header states")
        if record is None and records.fh.tell() > records.offset:  # warcio stops at bytes that begin no record
            raise OSError(f"no record begins at byte {records.offset}")
        if record is None:
            return
        yield _read_page(record)
        last = record


class _Stream:
    """Raises OSError where a file is cut off, instead of EOFError, which warcio takes for the proper end of a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.position = file, 0

    def read(self, size: int) -> bytes:
        try:
            data = self.file.read(size)
        except EOFError as error:
            raise OSError(str(error)) from error
        self.position += len(data)
        return data

    def tell(self) -> int:
        return self.position


def _read_page(record: "ArcWarcRecord") -> dict | Rejected:
    if record.rec_type not in ("response", "resource"):
        return Omitted(f"a record of the kind {record.rec_type}")
    headers = record.http_headers
    if headers is not None and headers.get_statuscode() != "200":
        return Omitted("an answer with another status than 200")
    kind = (headers or record.rec_headers).get_header("Content-Type") or ""
    if not kind.lower().startswith(_PAGES):
        return Omitted(f"not HTML but {re.split('[;,]', kind.strip())[0].lower()[:50] or 'of no stated type'}")
    stated_size = max(0, int(record.length or 0))  # bytes
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # warcio prints that a page is damaged, and ends it there
            content = (stream := record.content_stream()).read(reader.MAX_RECORD_BYTES + 1)
    except Exception as error:  # each decompressor raises its own
        return Rejected(f"the page cannot be unpacked: {quote_error(error)}", stated_size)
    if len(content) > reader.MAX_RECORD_BYTES:
        return reader.reject_too_long("page", max(len(content), stated_size))
    if not getattr(getattr(stream, "decompressor", None), "eof", True):
        return Rejected("the page's compressed content is damaged or cut off", len(content))
    url = (record.rec_headers.get_header("WARC-Target-URI") or record.rec_headers.get_header("uri") or "").strip("<>")
    if truncated := record.rec_headers.get_header("WARC-Truncated"):
        return Rejected(f"the page was truncated when it was fetched ({truncated})", len(content))
    is_latin = "iso-8859-1" in kind.lower() and not _NOT_LATIN.search(content)  # browsers read cp1252 then
    for encoding in ("utf-8", *_CHARSET.findall(kind), *["cp1252"] * bool(is_latin)):  # a page may state another one
        with contextlib.suppress(LookupError, ValueError):
            content = content.decode(encoding).encode()
            break
    return {"url": url, "page": content}


HTML = Reader(read_whole, _parse_page, may_be_compressed=True, modules=("trafilatura",), has_code=True)
WARC = Reader(_read_responses, _parse_page, may_be_compressed=True, modules=("warcio", "trafilatura"), has_code=True)
