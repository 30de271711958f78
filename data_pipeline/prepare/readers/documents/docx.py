"""``.docx``: a Word file is a document. Headings, titles, captions and tables go."""

import io
import zipfile

from data_pipeline.prepare.document import Document, Rejected

from .. import reader as limits
from ..reader import Reader, Record, name_file
from ..text import name_title, read_whole

_DROPPED_STYLES = ("Heading", "Title", "Subtitle", "Caption", "TOC", "toc")


def _parse(record: Record) -> list[Document]:
    import docx

    with zipfile.ZipFile(io.BytesIO(record.content)) as archive:
        if sum(info.file_size for info in archive.infolist()) > limits.MAX_RECORD_BYTES:
            raise limits.reject_too_long("unpacked document", len(record.content))
    opened = docx.Document(io.BytesIO(record.content))
    name, title = name_title(record)
    paragraphs = [p.text for p in opened.paragraphs if not _name_style(p).startswith(_DROPPED_STYLES)]
    if not any(text.strip() for text in paragraphs):
        raise Rejected("it holds no paragraph of text")
    return [Document(name, opened.core_properties.title or title, paragraphs, name_file(record.file))]


def _name_style(paragraph: object) -> str:
    style = getattr(paragraph, "style", None)
    return (style.name if style is not None else None) or ""


READER = Reader(read_whole, _parse, modules=("docx",), extra="documents")
