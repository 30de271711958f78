"""``.pdf``: a file is a document. Its lines are joined to paragraphs again; a scan, which has no text, is rejected."""

import io
import logging
import re
import statistics

from data_pipeline.prepare.document import Document, Rejected

from ..reader import Reader, Record, name_file
from ..text import name_title, read_whole

FULL_LINE = 0.8  # of the longest lines' length; a shorter line that ends a sentence ends a paragraph
_SENTENCE_END = re.compile(r"[.!?…:]['\"”’)\]]*$")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad]$")


def _parse(record: Record) -> list[Document]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns of each oddity of each file
    name, title = name_title(record)
    try:
        opened = PdfReader(io.BytesIO(record.content))
        if opened.is_encrypted and not opened.decrypt(""):
            raise Rejected("it is encrypted: save it without a password")
        lines = [line for page in opened.pages for line in page.extract_text().splitlines()]
        own_title = opened.metadata.title if opened.metadata else None
    except PyPdfError as error:
        raise Rejected(f"not a PDF that can be read: {error}") from error
    if not any(line.strip() for line in lines):
        raise Rejected("it holds no text: a scan needs text recognition first")
    return [Document(name, str(own_title or title), join_lines(lines), name_file(record.file))]


def join_lines(lines: list[str]) -> list[str]:
    """Join the lines of a page to paragraphs: one ends at a blank line, or with a sentence that fills no whole line."""
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


READER = Reader(read_whole, _parse, modules=("pypdf",), extra="documents")
