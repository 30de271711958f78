"""``.html``: a page is a document. Its main text is kept, without menus, headings, tables and code."""

from collections.abc import Set
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from .reader import Reader, Record, name_file, name_record
from .text import read_whole

_KEPT, _DROPPED = {"p", "item", "quote"}, {"head", "table", "code", "graphic"}


def extract_page(content: bytes, url: str | None = None) -> tuple[str, list[str]]:
    """Extracts the title and the paragraphs of a page with trafilatura. Raises Rejected where it finds no text."""
    import trafilatura

    extracted = trafilatura.bare_extraction(
        content, url=url, include_comments=False, include_tables=False, include_formatting=False, with_metadata=True
    )
    if extracted is None or isinstance(extracted, dict):
        raise Rejected("no running text was found in the page")
    return extracted.title or "", collect_paragraphs(extracted.body, _KEPT, _DROPPED, "lb")


def collect_paragraphs(body: Any, blocks: Set[str], dropped_tags: Set[str], line_break: str) -> list[str]:
    """Collects the text of an element, which blocks and dropped elements cut into paragraphs."""
    from lxml import etree

    paragraphs: list[list[str]] = [[]]
    dropped = 0
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        if element.tag in blocks or element.tag in dropped_tags:
            paragraphs.append([])
        if event == "start":
            dropped += element.tag in dropped_tags
            if element.tag == line_break:
                paragraphs[-1].append(" ")
            if not dropped:
                paragraphs[-1].append(element.text or "")
            continue
        if event == "end":
            dropped -= element.tag in dropped_tags
        if not dropped and element is not body:
            paragraphs[-1].append(element.tail or "")
    return [text for text in (" ".join("".join(parts).split()) for parts in paragraphs) if text]


def _parse(record: Record) -> list[Document]:
    title, paragraphs = extract_page(record.content)
    return [Document(name_record(record), title, paragraphs, name_file(record.file))]


READER = Reader(read_whole, _parse, may_be_compressed=True, modules=("trafilatura",))
