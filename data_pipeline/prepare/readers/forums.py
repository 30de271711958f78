"""Forums: StackExchange dumps, and ``questions:FILE.jsonl``, questions of a help desk or of any forum.

A question is a document, whose title is text, with its answers, the accepted one, and the questions that it duplicates.
Nothing is dropped for its length, since people posted it. A file is one part: a link may connect any two questions.

``Posts.xml`` has ``PostLinks.xml`` beside it; also compressed, or in the 7z they come in. Answers stand anywhere below
their question, so rows are dealt out to temporary files, by a hash of the question, each of which is put in order in
memory. ``stackexchange`` drops blocks of code, ``stackexchange-code`` keeps them.

``questions`` has a line of JSON each: ``title``, and ``text`` or ``paragraphs`` as its body; it may have ``id``,
``answers`` (a list of strings), ``accepted`` (the number of the accepted answer, from 0 on) and ``links`` (ids of
questions of the same file that it duplicates).
"""

import contextlib
import io
import lzma
import re
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from data_pipeline.core.errors import quote_error
from data_pipeline.prepare.document import Document, Omitted, Rejected

from .compression import COMPRESSED_SUFFIXES, is_compressed
from .jsonl import find_id, load_json, parse_fields, read_json_lines
from .lines import read_lines
from .reader import FilePart, Reader, Record, SourceFile, name_file
from .web import collect_paragraphs

GROUP_BYTES = 128 << 20  # about how many bytes of rows are put in order at a time
EXPANDS = 8  # how many times larger a compressed file may become
MAX_GROUPS = 500  # temporary files that are open at once
_QUESTION, _ANSWER, _DUPLICATE = b"1", b"2", b"3"
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
_CLOSED = re.compile(r"\A\s*<blockquote>\s*<p><strong>Possible Duplicate:?</strong>.*?</blockquote>", re.I | re.S)


def _find(name: bytes, row: bytes) -> bytes:
    match = re.search(rb' %s="(\d+)"' % name, row)  # quotes within a value are written &quot;
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
        with source.open() as opened:
            size = opened.seek(0, io.SEEK_END) * (EXPANDS if is_compressed(source.name) else 1)
        count = min(MAX_GROUPS, 1 + size // GROUP_BYTES)
        groups: list[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile(prefix="kinspan-")) for _ in range(count)]
        try:
            yield from _deal_out(source, groups)
        except _DAMAGE as error:
            damage.append(error)
        yield from _put_in_order(groups, links)
    if damage:
        raise damage[0]


def _put_in_order(groups: list[IO[bytes]], links: dict[int, list[int]]) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields the questions of the temporary files with their answers and links, and answers and links without one."""
    group_of = name_groups({str(a): map(str, originals) for a, originals in links.items()})
    number = 0
    for group in groups:
        group.seek(0)
        questions: dict[int, bytes] = {}
        answers: dict[int, list[bytes]] = defaultdict(list)
        for row in group:
            if _find(b"PostTypeId", row) != _QUESTION:
                answers[int(_find(b"ParentId", row))].append(row)
            elif (question := int(_find(b"Id", row))) not in questions:
                questions[question] = row
            else:
                yield number, Rejected(f"a second question has the Id {question}", len(row))
        for question, row in questions.items():
            number += 1
            linked = {"links": links.pop(question, []), "group": group_of.get(str(question), "")}
            yield number, {"question": row, "answers": answers.pop(question, []), **linked}
        for _ in range(sum(map(len, answers.values()))):
            yield number, Omitted("an answer whose question is not in the file")
    for _ in range(sum(map(len, links.values()))):
        yield number, Omitted("a link of a question that is not in the file")


def _read_duplicates(source: SourceFile, originals: dict[int, list[int]]) -> None:
    """Adds to ``originals`` the questions that each question duplicates, if there is a PostLinks.xml.

    Raises OSError, which names that file, where it cannot be read: the file of posts is not damaged.
    """
    beside = (source.find_beside("PostLinks.xml" + suffix) for suffix in ("", *COMPRESSED_SUFFIXES))
    for links in filter(None, beside):
        try:
            row: bytes | Rejected = b""
            for _, row in read_lines(links, None):
                if isinstance(row, bytes) and _find(b"LinkTypeId", row) == _DUPLICATE:
                    originals.setdefault(int(_find(b"PostId", row)), []).append(int(_find(b"RelatedPostId", row)))
            if isinstance(row, Rejected) or not _LINKS_END.search(row):
                raise EOFError("it does not end with </postlinks>: it is cut off, or no file of links")
        except _DAMAGE as error:
            raise OSError(f"{name_file(links.name)} beside it: {quote_error(error)}") from error
        break


def _deal_out(source: SourceFile, groups: list[IO[bytes]]) -> Iterator[tuple[int, Rejected]]:
    """Deals the rows of questions and answers out to temporary files, all of a question to one; yields other lines.

    Raises EOFError where the file has no end tag, and ValueError where a second file follows the first.
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
        kind = _find(b"PostTypeId", row)
        thread = _find(b"Id" if kind == _QUESTION else b"ParentId", row)
        if kind not in (_QUESTION, _ANSWER):
            yield number, Omitted("a post that is neither question nor answer")
        elif not thread:
            yield number, Rejected("a post without a number", len(row))
        else:
            groups[int(thread) % len(groups)].write(row if row.endswith(b"\n") else row + b"\n")
    if not ended and isinstance(row, bytes):
        raise EOFError(f"it does not end with {_END.decode()}: it is cut off, or no file of posts")


def _parse_thread(record: Record, keep_code: bool) -> list[Document]:
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
            extract_paragraphs(_CLOSED.sub("", question.get("Body", "")), keep_code) or [title],
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
    """Extracts the paragraphs of a post. Headings and tables go; code in a sentence stays, blocks by ``keep_code``."""
    from lxml.html import HTMLParser, document_fromstring

    if not html.strip():
        return []
    body = document_fromstring(f"<div>{html}</div>".encode(), parser=HTMLParser(encoding="utf-8", huge_tree=True))
    return collect_paragraphs(body, _BLOCKS, _DROPPED if keep_code else _DROPPED | {"pre"}, "br")


def _parse_row(row: bytes) -> dict[str, str]:
    try:
        return ElementTree.fromstring(_CONTROLS.sub(b" ", row)).attrib
    except ElementTree.ParseError as error:
        raise Rejected(f"not XML: {error}") from error


def name_forum(file: str) -> str:
    """Names the forum of a file of posts by its folder or archive: beer for beer.stackexchange.com.7z. Ids begin so."""
    head, colon, rest = file.partition(":")
    if colon and "/" not in head and not rest.startswith(":"):
        file = rest  # behind the name of a reader, or the scheme of a URL
    archive, _, inside = file.rpartition("::")
    folder = Path(inside).parent.name or (Path(archive).stem if archive else Path(file).absolute().parent.name)
    return folder.removesuffix(_SITE) or name_file(file)


# Questions ------------------------------------------------------------------------------------------------


def _read_questions(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict[str, Any] | Rejected]]:
    links: dict[str, list[str]] = defaultdict(list)
    for number, line in read_lines(source, None):
        if isinstance(line, bytes) and b'"links"' in line:
            with contextlib.suppress(Rejected):  # which parsing it reports
                fields = load_json(line)
                links[_name_question(fields, number)] += _parse_question(fields)["links"]
    group_of = name_groups(links)
    for number, line in read_json_lines(source, None):
        if isinstance(line, Rejected):
            yield number, line
            continue
        group = ""
        if group_of:
            with contextlib.suppress(Rejected):
                group = group_of.get(_name_question(load_json(line), number), "")
        yield number, {"line": line, "group": group}


def _name_question(fields: Any, number: int) -> str:
    """Names a question in its group: by its id, or by a name that no link can have."""
    return (find_id(fields) if isinstance(fields, dict) else "") or f"\n{number}"


def _parse_line(record: Record) -> list[Document]:
    fields = load_json(record.content["line"])
    question = _parse_question(fields)
    question |= {"group": record.content["group"], "source": record.name}  # in which its links lead
    return [replace(document, **question) for document in parse_fields(fields, record)]


def _parse_question(fields: Any) -> dict[str, Any]:
    """Returns the fields that only questions have. Raises Rejected where one has the wrong type."""
    if not isinstance(fields, dict):
        raise Rejected("not a JSON object")
    answers, accepted, links = fields.get("answers") or [], fields.get("accepted"), fields.get("links") or []
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise Rejected('"answers" is not a list of strings')
    if accepted is not None and (type(accepted) is not int or not 0 <= accepted < len(answers)):
        raise Rejected('"accepted" is not the number of one of the "answers", from 0 on')
    if not isinstance(links, list) or not all(isinstance(link, str | int) for link in links):
        raise Rejected('"links" is not a list of ids')
    links = [str(link) for link in links]
    return {"answers": answers, "accepted": accepted, "links": links, "title_is_text": True, "is_post": True}


def name_groups(links: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Returns each linked question's group, named by its first member that duplicates nothing, or else by any."""
    leader: dict[str, str] = {}

    def find(member: str) -> str:
        while leader.setdefault(member, member) != member:
            leader[member] = leader[leader[member]]  # halves the path for the next one
            member = leader[member]
        return member

    for source, targets in links.items():
        for target in targets:
            leader[find(source)] = find(target)
    names: dict[str, str] = {}
    for member in sorted(leader, key=lambda member: (bool(links.get(member)), member)):
        names.setdefault(find(member), member)
    return {member: names[find(member)] for member in leader}


STACKEXCHANGE = Reader(
    _read_threads,
    partial(_parse_thread, keep_code=False),
    may_be_compressed=True,
    names=r"Posts\.xml",
    companions=r"PostLinks\.xml",
    ignored=r"(?:Badges|Comments|PostHistory|Tags|Users|Votes)\.xml",
    modules=("lxml",),
)
WITH_CODE = replace(STACKEXCHANGE, parse=partial(_parse_thread, keep_code=True), names="")
QUESTIONS = Reader(_read_questions, _parse_line, may_be_compressed=True)
