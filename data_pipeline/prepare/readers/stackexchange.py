"""StackExchange dumps: ``Posts.xml``, with ``PostLinks.xml`` beside it; also compressed, or in the 7z they come in.

A question is a document, whose title is text; its answers, which of them was accepted, and the questions that it is a
duplicate of come with it. Answers stand anywhere below their question in the file, so the rows of a large file are
first dealt out to temporary files, by a hash of the question, and each of those is put in order in memory.

``stackexchange`` drops blocks of code, ``stackexchange-code`` keeps them: ``--input stackexchange-code:Posts.xml``.
"""

import contextlib
import io
import lzma
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from data_pipeline.core.errors import quote_error
from data_pipeline.prepare.document import Document, Omitted, Rejected

from .compression import COMPRESSED_SUFFIXES, is_compressed
from .html import collect_paragraphs
from .lines import read_lines
from .questions import name_groups
from .reader import FilePart, Reader, Record, SourceFile, name_file

GROUP_BYTES = 128 << 20  # about how many bytes of rows are put in order at a time
EXPANDS = 8  # how many times larger a compressed file may become
MAX_GROUPS = 500  # temporary files that are open at once
_QUESTION, _ANSWER, _DUPLICATE = b"1", b"2", b"3"
_LINKS = "PostLinks.xml"
_SITE = ".stackexchange.com"
_END = b"</posts>"
_LINKS_END = re.compile(rb"</postlinks>|<postlinks\s*/>")
_BLOCKS = {"p", "li", "blockquote", "div", "ul", "ol", "hr", "pre", "dd", "dt", "td", "th"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_DROPPED = {"table", "script", "style", "iframe"} | _HEADINGS
_DAMAGE = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error)
_FRAME = re.compile(rb"(?:\xef\xbb\xbf)?\s*</?(?:\?xml\b|posts\b|!)")  # what stands around the rows
_CONTROLS = re.compile(rb"&#x(?:[0-8BCEF]|1[0-9A-F]|FFF[EF]);", re.I)  # which XML does not allow, and dumps have

# Until 2013 the site itself wrote this above a question that was closed as a duplicate, with the title of the original:
# the question would hold what the objectives of duplicates, and a test set of them, ask for.
_CLOSED = re.compile(r"\s*<blockquote>\s*<p><strong>Possible Duplicate:?</strong>.*?</blockquote>", re.I | re.S)


def _compile(name: str) -> re.Pattern[bytes]:
    return re.compile(rb' %s="(\d+)"' % name.encode())  # quotes within a value are written &quot;


_ID, _TYPE, _PARENT = _compile("Id"), _compile("PostTypeId"), _compile("ParentId")
_FROM, _TO, _LINK_TYPE = _compile("PostId"), _compile("RelatedPostId"), _compile("LinkTypeId")


def _find(pattern: re.Pattern[bytes], row: bytes) -> bytes:
    match = pattern.search(row)
    return match[1] if match else b""


def _read_threads(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields each question with its answers and links: rows as they stand in the file.

    Of files that cannot be read to their ends these are the rows before that place; then the first error is raised.
    """
    links: dict[int, list[int]] = {}
    damage: list[Exception] = []
    try:
        _read_duplicates(source, links)
    except OSError as error:
        damage.append(error)
    with contextlib.ExitStack() as stack:
        groups = _open_groups(source, stack)
        try:
            yield from _deal_out(source, groups)
        except _DAMAGE as error:
            damage.append(error)
        yield from _put_in_order(groups, links)
    if damage:
        raise damage[0]


def _put_in_order(groups: list[IO[bytes]], links: dict[int, list[int]]) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields the questions of the temporary files with their answers and links, and say which of those lack one."""
    group_of = name_groups({str(a): map(str, originals) for a, originals in links.items()})
    number = 0
    for group in groups:
        group.seek(0)
        questions: dict[int, bytes] = {}
        answers: dict[int, list[bytes]] = {}
        for row in group:
            if _find(_TYPE, row) != _QUESTION:
                answers.setdefault(int(_find(_PARENT, row)), []).append(row)
            elif (question := int(_find(_ID, row))) not in questions:
                questions[question] = row
            else:
                yield number, Rejected(f"a second question has the Id {question}", len(row))
        for question, row in questions.items():
            number += 1
            ids = links.pop(question, [])
            linked = {"links": ids, "group": group_of.get(str(question), "")}
            yield number, {"question": row, "answers": answers.pop(question, []), **linked}
        for orphans in answers.values():
            for _ in orphans:
                yield number, Omitted("an answer whose question is not in the file")
    for ids in links.values():
        for _ in ids:
            yield number, Omitted("a link of a question that is not in the file")


def _read_duplicates(source: SourceFile, originals: dict[int, list[int]]) -> None:
    """Adds to ``originals`` which questions each question is a duplicate of; nothing where there is no PostLinks.xml.

    Raises OSError, which names that file, where it cannot be read: the file of posts is not what is damaged.
    """
    beside = (source.find_beside(_LINKS + suffix) for suffix in ("", *COMPRESSED_SUFFIXES))
    for links in filter(None, beside):
        try:
            row: bytes | Rejected = b""
            for _, row in read_lines(links, None):
                if isinstance(row, bytes) and _find(_LINK_TYPE, row) == _DUPLICATE:
                    originals.setdefault(int(_find(_FROM, row)), []).append(int(_find(_TO, row)))
            if isinstance(row, Rejected) or not _LINKS_END.search(row):
                raise EOFError("it does not end with </postlinks>: it is cut off, or no file of links")
        except _DAMAGE as error:
            raise OSError(f"{name_file(links.name)} beside it: {quote_error(error)}") from error
        break


def _open_groups(source: SourceFile, stack: contextlib.ExitStack) -> list[IO[bytes]]:
    """Opens as many temporary files as a file of posts of this size is dealt out to."""
    with source.open() as opened:
        size = opened.seek(0, io.SEEK_END) * (EXPANDS if is_compressed(source.name) else 1)
    groups: list[IO[bytes]] = []
    for _ in range(min(MAX_GROUPS, 1 + size // GROUP_BYTES)):
        file = tempfile.TemporaryFile(prefix="kinspan-")  # noqa: SIM115  (the stack closes it)
        groups.append(stack.enter_context(file))
    return groups


def _deal_out(source: SourceFile, groups: list[IO[bytes]]) -> Iterator[tuple[int, Rejected]]:
    """Deals the rows of questions and answers out to temporary files, all of a question to one; and yield what is no
    row.

    Raises EOFError where the file has no end tag, and ValueError where a second file follows the first one's.
    """
    row: bytes | Rejected = b""
    ended = False
    for number, row in read_lines(source, None):
        if ended:
            raise ValueError(f"more follows its {_END.decode()}: give each forum a file of its own")
        if isinstance(row, Rejected):
            yield number, row
            continue
        ended = _END in row
        if not row.lstrip().startswith(b"<row "):
            if not _FRAME.match(row):
                yield number, Rejected("a line that is no row of posts", len(row))
            continue
        kind = _find(_TYPE, row)
        thread = _find(_ID if kind == _QUESTION else _PARENT, row)
        if kind not in (_QUESTION, _ANSWER):
            yield number, Omitted("a post that is neither question nor answer")
        elif not thread:
            yield number, Rejected("a post without a number", len(row))
        else:
            groups[int(thread) % len(groups)].write(row if row.endswith(b"\n") else row + b"\n")
    if not ended and isinstance(row, bytes):
        raise EOFError(f"it does not end with {_END.decode()}: it is cut off, or no file of posts")


def _parse(record: Record, keep_code: bool) -> list[Document]:
    question = _parse_row(record.content["question"])
    rows = [_parse_row(row) for row in record.content["answers"]]
    rows.sort(key=lambda row: int(row["Id"]))
    forum = name_forum(record.file)
    title = question.get("Title", "")
    accepted = [number for number, row in enumerate(rows) if row["Id"] == question.get("AcceptedAnswerId")]
    return [
        Document(
            f"{forum}:{question['Id']}",
            title,
            extract_paragraphs(_drop_notice(question.get("Body", "")), keep_code) or [title],
            record.called.rpartition("/")[0].removesuffix(_SITE) or forum,  # two folders may have the forum's name
            answers=["\n".join(extract_paragraphs(row.get("Body", ""), keep_code)) for row in rows],
            accepted=accepted[0] if accepted else None,
            links=[f"{forum}:{number}" for number in record.content["links"]],
            group=f"{forum}:{record.content['group']}" if record.content["group"] else "",
            title_is_text=True,
            is_post=True,
        )
    ]


def extract_paragraphs(html: str, keep_code: bool) -> list[str]:
    """Extracts the paragraphs of a post. Headings and tables go; code within a sentence stays.

    keep_code: whether blocks of code are kept, each as a paragraph
    """
    from lxml.html import HTMLParser, document_fromstring

    if not html.strip():
        return []
    body = document_fromstring(f"<div>{html}</div>".encode(), parser=HTMLParser(encoding="utf-8", huge_tree=True))
    return collect_paragraphs(body, _BLOCKS, _DROPPED if keep_code else _DROPPED | {"pre"}, "br")


def _drop_notice(body: str) -> str:
    notice = _CLOSED.match(body)
    return body[notice.end() :] if notice else body


def _parse_row(row: bytes) -> dict[str, str]:
    try:
        return ElementTree.fromstring(_CONTROLS.sub(b" ", row)).attrib
    except ElementTree.ParseError as error:
        raise Rejected(f"not XML: {error}") from error


def name_forum(file: str) -> str:
    """Names the forum of a file of posts by its folder or its archive, beer for beer.stackexchange.com.7z.

    Ids begin with the name and decide what is held out, so that the same forum has it in either form.
    """
    head, colon, rest = file.partition(":")
    if colon and "/" not in head and not rest.startswith(":"):
        file = rest  # the name of a reader, or the scheme of a URL, is none of the forum's
    archive, _, inside = file.rpartition("::")
    folder = Path(inside).parent.name or (Path(archive).stem if archive else Path(file).absolute().parent.name)
    return folder.removesuffix(_SITE) or name_file(file)


READER = Reader(
    _read_threads,
    partial(_parse, keep_code=False),
    may_be_compressed=True,
    names=r"Posts\.xml",
    companions=r"PostLinks\.xml",
    ignored=r"(?:Badges|Comments|PostHistory|Tags|Users|Votes)\.xml",
    modules=("lxml",),
)
READER_WITH_CODE = replace(READER, parse=partial(_parse, keep_code=True), names="")
