"""``.html``: a page is a document. Its main text is kept, without menus, headings, tables and code."""

from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from ..reader import Reader, Record, name_file, name_record
from ..text import read_whole

_KEPT, _DROPPED = {"p", "item", "quote"}, {"head", "table", "code", "graphic"}


def extract_page(content: bytes, url: str | None = None) -> tuple[str, list[str]]:
    """Extract the title and the paragraphs of a page with trafilatura. Raises Rejected where it finds no text."""
    import trafilatura

    found = trafilatura.bare_extraction(
        content, url=url, include_comments=False, include_tables=False, include_formatting=False, with_metadata=True
    )
    if found is None or isinstance(found, dict):
        raise Rejected("no running text was found in the page")
    return found.title or "", _collect(found.body)


def _collect(body: Any) -> list[str]:
    """Collect the paragraphs of what trafilatura kept."""
    paragraphs: list[list[str]] = [[]]

    def add(text: str | None) -> None:
        if text:
            paragraphs[-1].append(text)

    from lxml import etree

    dropped = 0
    for event, element in etree.iterwalk(body, events=("start", "end")):
        if event == "start":
            if element.tag in _KEPT or element.tag in _DROPPED:
                paragraphs.append([])
            dropped += element.tag in _DROPPED
            if element.tag == "lb":
                add(" ")
            if not dropped:
                add(element.text)
        else:
            dropped -= element.tag in _DROPPED
            if element.tag in _KEPT or element.tag in _DROPPED:
                paragraphs.append([])
            if not dropped and element is not body:
                add(element.tail)
    return [text for text in (" ".join("".join(parts).split()) for parts in paragraphs) if text]


def _parse(record: Record) -> list[Document]:
    title, paragraphs = extract_page(record.content)
    return [Document(name_record(record), title, paragraphs, name_file(record.file))]


READER = Reader(read_whole, _parse, may_be_compressed=True, modules=("trafilatura",), extra="web")
