"""``.docx``, ``.pptx`` and ``.pdf``: a file is a document. Headings, titles, captions and tables go.

markitdown does not serve here: of a Word file it drops the text of fields ("See table 3 on page 7." becomes "See on
page 7."), and of a PDF it leaves lines.
"""

import io
import logging
import re
import statistics
import zipfile
from typing import Any
from xml.etree import ElementTree

from data_pipeline.prepare.document import Document, Rejected

from . import reader as limits
from .reader import Reader, Record, name_file
from .text import name_title, read_whole

_DROPPED_STYLES = ("Heading", "Title", "Subtitle", "Caption", "TOC", "toc")
# python-docx passes over what stands in content controls, fields and tracked insertions
_PARAGRAPHS = ".//w:p[not(ancestor::w:tbl or ancestor::w:txbxContent)]"
_RUNS = ".//w:r[not(ancestor::w:txbxContent or ancestor::w:moveFrom)]"
_SLIDE = re.compile(r"ppt/slides/slide(\d+)\.xml")
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
FULL_LINE = 0.8  # of the longest lines' length; a shorter line that ends a sentence ends a paragraph
_SENTENCE_END = re.compile(r"[.!?…:]['\"”’)\]]*$")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad]$")


def _open_zip(record: Record) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(io.BytesIO(record.content))
    if sum(info.file_size for info in archive.infolist()) > limits.MAX_RECORD_BYTES:
        raise limits.reject_too_long("unpacked document", len(record.content))
    return archive


def _make_document(record: Record, title: Any, paragraphs: list[str]) -> list[Document]:
    if not any(text.strip() for text in paragraphs):
        raise Rejected("it holds no text; a scan needs text recognition first")
    name, name_as_title = name_title(record)
    return [Document(name, str(title or name_as_title), paragraphs, name_file(record.file))]


def _parse_docx(record: Record) -> list[Document]:
    import docx
    from docx.text.paragraph import Paragraph

    _open_zip(record).close()
    opened = docx.Document(io.BytesIO(record.content))
    paragraphs = [Paragraph(element, opened) for element in opened.element.body.xpath(_PARAGRAPHS)]
    texts = [
        "".join(run.text for run in paragraph._p.xpath(_RUNS))
        for paragraph in paragraphs
        if not ((paragraph.style and paragraph.style.name) or "").startswith(_DROPPED_STYLES)
    ]
    return _make_document(record, opened.core_properties.title, texts)


def _parse_pptx(record: Record) -> list[Document]:
    with _open_zip(record) as archive:
        slides = {int(match[1]): name for name in archive.namelist() if (match := _SLIDE.fullmatch(name))}
        trees = [ElementTree.fromstring(archive.read(slides[number])) for number in sorted(slides)]
    paragraphs = [paragraph for tree in trees for paragraph in tree.iter(f"{_DRAWING}p")]
    return _make_document(record, "", ["".join(t.text or "" for t in p.iter(f"{_DRAWING}t")) for p in paragraphs])


def _parse_pdf(record: Record) -> list[Document]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns of each oddity of each file
    try:
        opened = PdfReader(io.BytesIO(record.content))
        if opened.is_encrypted and not opened.decrypt(""):
            raise Rejected("it is encrypted: save it without a password")
        lines = [line for page in opened.pages for line in page.extract_text().splitlines()]
        title = opened.metadata.title if opened.metadata else None
    except PyPdfError as error:
        raise Rejected(f"not a PDF that can be read: {error}") from error
    return _make_document(record, title, join_lines(lines))


def join_lines(lines: list[str]) -> list[str]:
    """Joins the lines of a page to paragraphs, which end at a blank line, or at a sentence that ends a short line."""
    lines = [line.strip() for line in lines]
    lengths = sorted(len(line) for line in lines if line)
    full = FULL_LINE * statistics.median(lengths[len(lengths) // 2 :]) if lengths else 0
    paragraphs = [""]
    for line in lines:
        if not line:
            paragraphs.append("")
            continue
        before = paragraphs[-1]
        if _HYPHEN.search(before) and line[0].islower():
            paragraphs[-1] = before[:-1] + line
        else:
            paragraphs[-1] = f"{before} {line}" if before else line
        if len(line) < full and _SENTENCE_END.search(line):
            paragraphs.append("")
    return [paragraph for paragraph in paragraphs if paragraph]


DOCX = Reader(read_whole, _parse_docx, modules=("docx",))
PPTX = Reader(read_whole, _parse_pptx)
PDF = Reader(read_whole, _parse_pdf, modules=("pypdf",))
