"""``.md``, ``.rst``, ``.docx``, ``.pptx`` and ``.pdf``: a file is a document, and its highest heading the title.

Headings, titles, captions, code (see ``has_code``), tables, images and HTML are dropped; in reStructuredText also
lists of parameters, footnotes and directives without text. markitdown is not used: in a Word file it drops the text of
fields ("See table 3 on page 7." becomes "See on page 7."), and it does not join the lines of a PDF.
"""

import io
import logging
import re
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from data_pipeline.prepare.cleaning import normalise
from data_pipeline.prepare.document import Document, Rejected

from . import reader
from .reader import Reader, Record
from .text import decode, join_lines, name_title, read_whole

if TYPE_CHECKING:
    from docutils.nodes import Node
    from markdown_it.token import Token

# --- before a blank line is a horizontal rule, not front matter
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)\n(?!\s*\n).*?\n(?:\1|\.\.\.)\n", re.S)
_BREAK = re.compile(r"<br\b", re.I)
_NOTE = re.compile(r"^( *)(?:!!!|\?\?\?\+?|===) +(?=[\w\"])(.*)", re.M)  # of MkDocs; its text is indented as code is
_ITEM = r"(?:(?:[-*+•]|\(?\w{1,3}[.)])[ \t]+)*"
_DIRECTIVE = re.compile(rf"^[ \t]*{_ITEM}\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([\w:+.-]+)::", re.M)
_ROLE = re.compile(r"(?<![\w:]):([\w+.-]{1,50}(?::[\w+.-]{1,50}){0,3}):`")
_NO_TEXT = re.compile(  # directives whose content is not running text
    r"(?:.*:)?(?:(?:source|parsed|auto|lit|test|ipython|doc|literal|jupyter|plot|tabular|production|highlight|current)"
    r".*|code.*|toctree|index|math|image|figure|graphviz|mermaid|contents|include|raw|rubric|only|ifconfig|meta|cssclass"
    r"|autosummary|inheritance-diagram|program|sectionauthor|moduleauthor|centered|hlist|bibliography|grid.*|card.*)"
)
_CODE = re.compile(r"(?:.*:)?(?:code.*|sourcecode|parsed-literal|doctest|testcode|ipython.*|jupyter-execute)")
_TEXT_ARGUMENT = re.compile(r"version|deprecated|seealso|todo")  # directives whose argument may be text
_VERSION = re.compile(r"^[\d.]+\s*")
_NAMED_TARGET = re.compile(r"\s*<[^<>]+>$")  # in a role's text: ``print <print-function>``
_DROPPED_STYLES = ("Subtitle", "Caption", "TOC", "toc")
# python-docx skips paragraphs and runs in content controls, fields and tracked insertions
_PARAGRAPHS = ".//w:p[not(ancestor::w:tbl or ancestor::w:txbxContent)]"
_RUNS = ".//w:r[not(ancestor::w:txbxContent or ancestor::w:moveFrom or ancestor::w:rt)]"
_SLIDE = re.compile(r"ppt/slides/slide(\d+)\.xml")
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"


class _Code(str):
    """A block of code between paragraphs."""


class _Heading(str):
    """A heading between paragraphs."""


def _make_document(record: Record, title: str | None, texts: list[str], keep_code: bool = False) -> list[Document]:
    """Makes a document of paragraphs, headings, and blocks of code, which join the paragraph before or are left out."""
    name, name_as_title = name_title(record)
    kept, headings, heading = list[str](), list[str](), ""
    for text in filter(None, texts):
        if isinstance(text, _Heading):
            heading = str(text)
        elif not isinstance(text, _Code):
            kept.append(text)
        elif keep_code:
            kept[-1:] = [" ".join([*kept[-1:], *text.split()])]
        headings += [heading] * (len(kept) - len(headings))
    count, title = sum(isinstance(text, _Code) for text in texts), title or name_as_title
    return [Document(name, title, kept, record.source, is_parsed=True, code_blocks=count, headings=headings)]


# Markup ---------------------------------------------------------------------------------------------------


def _parse_markdown(record: Record, keep_code: bool = False) -> list[Document]:
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", decode(record.content).replace("\r\n", "\n"))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(_NOTE.sub(r"\1-   \2\n", text))
    paragraphs: list[str] = []
    headings, open_tags = dict[str, str](), list[str]()
    for token in tokens:
        if token.nesting == 1:
            open_tags.append(token.tag)
        elif token.nesting == -1:
            open_tags.pop()
        elif token.type == "inline" and "table" not in open_tags:
            words = _join_words(token.children or [])
            if open_tags[-1] == "p":
                paragraphs.append(words)
            elif open_tags[-1].startswith("h"):
                headings.setdefault(open_tags[-1], words)
                paragraphs.append(_Heading(words))
        elif token.type in ("fence", "code_block"):
            paragraphs.append(_Code(token.content))
    return _make_document(record, headings.get(min(headings, default="")), paragraphs, keep_code)


def _join_words(tokens: "list[Token]") -> str:
    shown = {"text": "", "code_inline": "", "softbreak": "\n", "hardbreak": " "}
    kept = (token for token in tokens if token.type in shown or _BREAK.match(token.content))
    return normalise("".join(shown.get(token.type, " ") or token.content for token in kept))


def _parse_rst(record: Record, keep_code: bool = False) -> list[Document]:
    from docutils import nodes
    from docutils.core import publish_doctree

    text = decode(record.content)
    _register_unknown(text)
    settings = {"report_level": 5, "halt_level": 5, "file_insertion_enabled": False, "raw_enabled": False}
    tree = publish_doctree(text, settings_overrides={**settings, "line_length_limit": len(text) + 1})
    for reference in list(tree.findall(nodes.footnote_reference)):
        reference.parent.remove(reference)
    heading = next((title.astext() for title in tree.findall(nodes.title)), "")
    return _make_document(record, heading, list(_list_paragraphs(tree)), keep_code)


def _list_paragraphs(node: "Node") -> Iterator[str]:
    from docutils import nodes

    dropped = (
        *(nodes.table, nodes.field_list, nodes.docinfo, nodes.footnote, nodes.citation, nodes.comment),
        *(nodes.system_message, nodes.substitution_definition),
    )
    if isinstance(node, nodes.paragraph):
        yield normalise(node.astext())
    elif isinstance(node, nodes.title | nodes.subtitle) and isinstance(node.parent, nodes.section | nodes.document):
        yield _Heading(normalise(node.astext()))
    elif isinstance(node, nodes.literal_block | nodes.doctest_block):
        yield _Code(node.astext())
    elif not isinstance(node, dropped):
        for child in node.children:
            yield from _list_paragraphs(child)


def _register_unknown(text: str) -> None:
    """Registers Sphinx's and other unknown roles and directives, which docutils would report as errors: a role is
    replaced by its text, and a directive by its paragraphs."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles

    class Unknown(Directive):
        has_content, optional_arguments, final_argument_whitespace = True, 1, True

        def run(self) -> "list[Node]":
            if self.content and _CODE.fullmatch(self.name):
                return [nodes.literal_block(text="\n".join(self.content))]
            if _NO_TEXT.fullmatch(self.name):
                return []
            holder = nodes.container()
            argument = "".join(self.arguments)
            if _TEXT_ARGUMENT.match(self.name):
                holder += nodes.paragraph(text=_VERSION.sub("", argument))
            self.state.nested_parse(self.content, self.content_offset, holder)
            return [holder]

    def read_role(name: str, rawtext: str, text: str, *_: object, **__: object) -> "tuple[list[Node], list[Node]]":
        return [nodes.inline(rawtext, _NAMED_TARGET.sub("", text).lstrip("~!"))], []

    for name in {*map(str.lower, _DIRECTIVE.findall(text))}:
        if name not in directives._directive_registry or _NO_TEXT.fullmatch(name):
            directives.register_directive(name, Unknown)
    for name in {*map(str.lower, _ROLE.findall(text))} - roles._role_registry.keys():
        roles.register_local_role(name, read_role)


# Office ---------------------------------------------------------------------------------------------------


def _open_zip(record: Record) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(io.BytesIO(record.content))
    if sum(info.file_size for info in archive.infolist()) > reader.MAX_RECORD_BYTES:
        raise reader.reject_too_long("unpacked document", len(record.content))
    return archive


def _make_nonempty(record: Record, title: str | None, paragraphs: list[str]) -> list[Document]:
    if not any(text.strip() for text in paragraphs if not isinstance(text, _Heading)):
        raise Rejected("it holds no text; a scan needs text recognition first")
    return _make_document(record, title, paragraphs)


def _parse_docx(record: Record) -> list[Document]:
    import docx
    from docx.text.paragraph import Paragraph

    _open_zip(record).close()
    opened = docx.Document(io.BytesIO(record.content))
    paragraphs = [Paragraph(element, opened) for element in opened.element.body.xpath(_PARAGRAPHS)]
    texts, headings = list[str](), list[str]()
    for paragraph in paragraphs:
        style, runs = str(paragraph.style and paragraph.style.name), paragraph._p.xpath(_RUNS)
        text = "".join(run.text for run in runs)
        if style.startswith(("Title", "Heading")):
            headings.append(text)
            texts.append(_Heading(text))
        elif not style.startswith(_DROPPED_STYLES):
            texts.append(text)
    return _make_nonempty(record, opened.core_properties.title or next(iter(headings), ""), texts)


def _parse_pptx(record: Record) -> list[Document]:
    with _open_zip(record) as archive:
        slides = {int(match[1]): name for name in archive.namelist() if (match := _SLIDE.fullmatch(name))}
        trees = [ElementTree.fromstring(archive.read(slides[number])) for number in sorted(slides)]
    shown = {f"{_DRAWING}t": "", f"{_DRAWING}br": "\n"}
    paragraphs = [[part for part in p.iter() if part.tag in shown] for tree in trees for p in tree.iter(f"{_DRAWING}p")]
    return _make_nonempty(record, "", ["".join(shown[t.tag] or t.text or "" for t in p) for p in paragraphs])


def _parse_pdf(record: Record) -> list[Document]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it logs a warning for every oddity of a file
    try:
        opened = PdfReader(io.BytesIO(record.content))
        if opened.is_encrypted and not opened.decrypt(""):
            raise Rejected("it is encrypted: save it without a password")
        lines = [line for page in opened.pages for line in page.extract_text().splitlines()]
        title = opened.metadata.title if opened.metadata else None
    except PyPdfError as error:
        raise Rejected(f"not a PDF that can be read: {error}") from error
    return _make_nonempty(record, title, join_lines(lines))


MARKDOWN = Reader(read_whole, _parse_markdown, may_be_compressed=True, modules=("markdown_it",), has_code=True)
RST = Reader(read_whole, _parse_rst, may_be_compressed=True, modules=("docutils",), has_code=True)
DOCX = Reader(read_whole, _parse_docx, modules=("docx",))
PPTX = Reader(read_whole, _parse_pptx)
PDF = Reader(read_whole, _parse_pdf, modules=("pypdf",))
