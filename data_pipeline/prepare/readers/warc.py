"""``.warc`` and ``.arc``, also ``.gz``: the archives of crawls, such as CC-News. An HTML page is a document.

Requests, images and answers with an error are counted, and are no documents. A document's id is its address, so that
all copies of a page are held out, or none.
"""

import contextlib
import io
import re
import zlib
from collections.abc import Iterator
from typing import Any

from data_pipeline.prepare.document import Document, Omitted, Rejected

from . import reader as limits
from .compression import open_source
from .html import extract_page
from .reader import FilePart, Reader, Record, SourceFile, name_file, name_record

_PAGES = ("text/html", "application/xhtml+xml")
_MARK = b"\nWARC/1."


def _read_responses(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields the address and content of each page. A broken record costs itself where a next one can be found."""
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    number = 0
    with open_source(source) as file:
        first = file.read(16)
        if first and not first.lstrip().startswith((b"WARC/", b"filedesc:")):
            raise OSError("it begins with no record of a WARC or an ARC")
        stream: _Stream | None = _Stream(first, file, 0)
        while stream is not None:
            records = ArchiveIterator(stream)
            try:
                for content in _read_records(records):
                    number += 1
                    yield number, content
                return
            except ArchiveLoadFailed as error:
                reason, begin = " ".join(str(error).split()), records.offset
                stream = _find_next(records)
                if stream is None:
                    raise OSError(reason) from error
                number += 1
                yield number, Rejected(f"a broken record: {reason}", max(0, stream.at - begin))


def _read_records(records: Any) -> Iterator[dict | Rejected]:
    """Yields what each record holds. Raises EOFError where the last record is cut off."""
    last, errors = None, 0
    while True:
        with contextlib.redirect_stderr(io.StringIO()):  # it is told what is wrong by ``err_count``, too
            record = next(records, None)
        if last is not None and getattr(last.raw_stream, "limit", 0) > 0:
            raise EOFError("the last record is cut off")
        if records.err_count > errors:
            errors = records.err_count
            yield Rejected("the record before this one does not end where it says")
        if record is None and records.fh.tell() > records.offset:  # warcio takes some rubbish for the end
            raise OSError(f"no record begins at byte {records.offset}")
        if record is None:
            return
        yield _read_page(record)
        last = record


def _find_next(records: Any) -> "_Stream | None":
    """Finds the next record of a WARC in what is left of the stream; None where there is none."""
    data, reader = b"", records.reader
    at = records.fh.tell() - reader.rem_length()
    while chunk := reader.read():
        data += chunk
        if (place := data.find(_MARK)) >= 0:
            return _Stream(data[place + 1 :], reader, at + place + 1)
        at, data = at + len(data) - len(data[1 - len(_MARK) :]), data[1 - len(_MARK) :]
    return None


class _Stream:
    """A stream that knows at which byte it stands, and of which a few bytes were already read.

    warcio takes an EOFError for the end of the file, so that of a file that is cut off becomes an OSError.
    """

    def __init__(self, first: bytes, rest: Any, at: int) -> None:
        self.first, self.rest, self.at = first, rest, at

    def read(self, size: int) -> bytes:
        try:
            data = self.first[:size] or self.rest.read(size)
        except EOFError as error:
            raise OSError(str(error)) from error
        self.first = self.first[size:]
        self.at += len(data)
        return data

    def tell(self) -> int:
        return self.at


def _read_page(record: Any) -> dict | Rejected:
    if record.rec_type not in ("response", "resource"):
        return Omitted(f"a record of the kind {record.rec_type}")
    headers = record.http_headers
    if headers is not None and headers.get_statuscode() != "200":
        return Omitted("an answer with another status than 200")
    kind = (headers or record.rec_headers).get_header("Content-Type") or ""
    if not kind.lower().startswith(_PAGES):
        return Omitted(f"not HTML but {re.split('[;,]', kind.strip())[0].lower()[:50] or 'of no stated type'}")
    stated = max(0, int(record.length or 0))  # bytes
    try:
        content = record.content_stream().read(limits.MAX_RECORD_BYTES + 1)
    except (OSError, ValueError, zlib.error) as error:
        return Rejected(f"the page cannot be unpacked: {error}", stated)
    if len(content) > limits.MAX_RECORD_BYTES:
        return limits.reject_too_long("page", max(len(content), stated))
    url = (record.rec_headers.get_header("WARC-Target-URI") or record.rec_headers.get_header("uri") or "").strip("<>")
    declared = record.rec_headers.get_header("WARC-Truncated")
    if declared:
        return Rejected(f"the page was cut when it was fetched ({declared})", len(content))
    return {"url": url, "page": content}


def _parse(record: Record) -> list[Document]:
    url = record.content["url"]
    title, paragraphs = extract_page(record.content["page"], url or None)
    return [Document(url or f"{name_record(record)}:{record.line}", title, paragraphs, name_file(record.file))]


READER = Reader(
    _read_responses,
    _parse,
    may_be_compressed=True,
    modules=("warcio", "trafilatura"),
)
