"""``.md`` and ``.rst``: a file is a document, and its first heading the title. Headings, code, tables, images and HTML
go, of reStructuredText also lists of parameters, footnotes, and directives that hold no text."""

import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.prepare.document import Document

from .reader import Reader, Record, name_file
from .text import decode, name_title, read_whole

# Above a blank line, the same signs are a rule, and what stands below it is text
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)\n(?!\s*\n).*?\n(?:\1|\.\.\.)\n", re.S)
_BREAK = re.compile(r"<br\b", re.I)
# Directives and roles that docutils does not know; of these directives the content is no text
_DIRECTIVE = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([\w:+.-]+)::", re.M)
_ROLE = re.compile(r"(?<![\w:]):([\w+.-]+(?::[\w+.-]+)*):`")
_NO_TEXT = re.compile(
    r"(?:.*:)?(?:(?:source|parsed|auto|lit|test|ipython|doc|literal|jupyter|plot|tabular|production|highlight|current)"
    r".*|code.*|toctree|index|math|image|figure|graphviz|mermaid|contents|include|raw|rubric|only|ifconfig|meta|cssclass"
    r"|autosummary|inheritance-diagram|program|sectionauthor|moduleauthor|centered|hlist|bibliography|grid.*|card.*)"
)
_TEXT_ARGUMENT = re.compile(r"version|deprecated|seealso|todo")  # directives that may begin with their text
_VERSION = re.compile(r"^[\d.]+\s*")
_NAMED_TARGET = re.compile(r"\s*<[^<>]+>$")  # of a role's text: ``print <print-function>``


def _parse_markdown(record: Record) -> list[Document]:
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", decode(record.content).replace("\r\n", "\n"))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
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
    return [_make_document(record, heading, paragraphs)]


def _join_words(tokens: list[Any]) -> str:
    parts = [
        token.content if token.type in ("text", "code_inline") else " "
        for token in tokens
        if token.type in ("text", "code_inline", "softbreak", "hardbreak") or _BREAK.match(token.content)
    ]
    return " ".join("".join(parts).split())


def _parse_rst(record: Record) -> list[Document]:
    from docutils import nodes
    from docutils.core import publish_doctree

    text = decode(record.content)
    _register_unknown(text)
    settings = {"report_level": 5, "halt_level": 5, "file_insertion_enabled": False, "raw_enabled": False}
    tree = publish_doctree(text, settings_overrides={**settings, "line_length_limit": len(text) + 1})
    for reference in list(tree.findall(nodes.footnote_reference)):
        reference.parent.remove(reference)
    heading = next((title.astext() for title in tree.findall(nodes.title)), "")
    return [_make_document(record, heading, list(_list_paragraphs(tree)))]


def _list_paragraphs(node: Any) -> Iterator[str]:
    from docutils import nodes

    dropped = (
        *(nodes.table, nodes.field_list, nodes.docinfo, nodes.footnote, nodes.citation, nodes.comment),
        *(nodes.system_message, nodes.literal_block, nodes.doctest_block, nodes.title, nodes.substitution_definition),
    )
    if isinstance(node, nodes.paragraph):
        yield " ".join(node.astext().split())
    elif not isinstance(node, dropped):
        for child in node.children:
            yield from _list_paragraphs(child)


def _register_unknown(text: str) -> None:
    """Makes docutils know the roles and directives of Sphinx and its extensions, which would be errors: a role stands
    for its text, and a directive for the paragraphs in it."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles

    class Unknown(Directive):
        has_content, optional_arguments, final_argument_whitespace = True, 1, True

        def run(self) -> list[Any]:
            if _NO_TEXT.fullmatch(self.name):
                return []
            holder = nodes.container()
            argument = "".join(self.arguments)
            if _TEXT_ARGUMENT.match(self.name):
                holder += nodes.paragraph(text=_VERSION.sub("", argument))
            self.state.nested_parse(self.content, self.content_offset, holder)
            return [holder]

    def read_role(name: str, rawtext: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
        return [nodes.inline(rawtext, _NAMED_TARGET.sub("", text).lstrip("~!"))], []

    for name in {*map(str.lower, _DIRECTIVE.findall(text))}:
        if name not in directives._directive_registry or _NO_TEXT.fullmatch(name):
            directives.register_directive(name, Unknown)
    for name in {*map(str.lower, _ROLE.findall(text))} - roles._role_registry.keys():
        roles.register_local_role(name, read_role)


def _make_document(record: Record, heading: str, paragraphs: list[str]) -> Document:
    name, title = name_title(record)
    return Document(name, heading or title, [p for p in paragraphs if p], name_file(record.file))


MARKDOWN = Reader(read_whole, _parse_markdown, may_be_compressed=True, modules=("markdown_it",))
RST = Reader(read_whole, _parse_rst, may_be_compressed=True, modules=("docutils",))
