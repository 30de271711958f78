"""``.docx``: a Word file is a document. Headings, titles, captions and tables go."""

import io
import zipfile
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from .. import reader as limits
from ..reader import Reader, Record, name_file
from ..text import name_title, read_whole

_DROPPED_STYLES = ("Heading", "Title", "Subtitle", "Caption", "TOC", "toc")
# python-docx passes over what stands in content controls, fields and tracked insertions
_PARAGRAPHS = ".//w:p[not(ancestor::w:tbl or ancestor::w:txbxContent)]"
_RUNS = ".//w:r[not(ancestor::w:txbxContent or ancestor::w:moveFrom)]"


def _parse(record: Record) -> list[Document]:
    import docx
    from docx.text.paragraph import Paragraph

    with zipfile.ZipFile(io.BytesIO(record.content)) as archive:
        if sum(info.file_size for info in archive.infolist()) > limits.MAX_RECORD_BYTES:
            raise limits.reject_too_long("unpacked document", len(record.content))
    opened = docx.Document(io.BytesIO(record.content))
    name, title = name_title(record)
    paragraphs = [
        _read_text(p)
        for element in opened.element.body.xpath(_PARAGRAPHS)
        if not _name_style(p := Paragraph(element, opened)).startswith(_DROPPED_STYLES)
    ]
    if not any(text.strip() for text in paragraphs):
        raise Rejected("it holds no paragraph of text")
    return [Document(name, opened.core_properties.title or title, paragraphs, name_file(record.file))]


def _read_text(paragraph: Any) -> str:
    return "".join(run.text for run in paragraph._p.xpath(_RUNS))


def _name_style(paragraph: object) -> str:
    style = getattr(paragraph, "style", None)
    return (style.name if style is not None else None) or ""


READER = Reader(read_whole, _parse, modules=("docx",), extra="documents")
