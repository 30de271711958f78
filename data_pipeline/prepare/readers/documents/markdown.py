"""``.md``: a file is a document. Headings, code, tables, images and HTML go."""

import re
from typing import Any

from data_pipeline.prepare.document import Document

from ..reader import Reader, Record, name_file
from ..text import decode, name_title, read_whole

# Above a blank line, the same signs are a rule, and what stands below it is text
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)\n(?!\s*\n).*?\n(?:\1|\.\.\.)\n", re.S)
_BREAK = re.compile(r"<br\b", re.I)


def _parse(record: Record) -> list[Document]:
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", decode(record.content).replace("\r\n", "\n"))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    name, title = name_title(record)
    paragraphs: list[str] = []
    heading, within = "", []
    for token in tokens:
        if token.nesting == 1:
            within.append(token.tag)
        elif token.nesting == -1:
            within.pop()
        elif token.type == "inline" and "table" not in within:
            words = _join_words(token.children or [])
            if within[-1] == "p":
                paragraphs.append(words)
            heading = heading or (words if within[-1] == "h1" else "")
    return [Document(name, heading or title, [p for p in paragraphs if p], name_file(record.file))]


def _join_words(tokens: list[Any]) -> str:
    parts = [
        token.content if token.type in ("text", "code_inline") else " "
        for token in tokens
        if token.type in ("text", "code_inline", "softbreak", "hardbreak") or _BREAK.match(token.content)
    ]
    return " ".join("".join(parts).split())


READER = Reader(read_whole, _parse, may_be_compressed=True, modules=("markdown_it",), extra="documents")
