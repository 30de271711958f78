"""Forums: StackExchange dumps, and ``questions:FILE.jsonl``, questions of a help desk or of any forum.

A question is a document, whose title is text, with its answers, the accepted one, and the questions that it duplicates.
No question is dropped for its length. A file is one part, since a link may connect any two questions.

``Posts.xml`` may have ``PostLinks.xml`` beside it; both may be compressed, or in the dump's .7z. Answers may be far
from their question, so rows are distributed to temporary files by question, and each file is sorted in memory.

``questions`` has a question per line, as JSON: ``title``, and ``text`` or ``paragraphs`` as its body; it may have
``id``, ``answers`` (a list of strings), ``accepted`` (index of the accepted answer) and ``links`` (ids of questions of
the same file that it duplicates).
"""

import contextlib
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from data_pipeline.core.errors import quote_error
from data_pipeline.prepare.document import Document, Omitted, Rejected
from data_pipeline.sampling.texts import connect

from .compression import COMPRESSED_SUFFIXES
from .jsonl import find_id, load_json, parse_fields, read_json_lines
from .lines import read_lines
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, name_file
from .text import parse_xml
from .web import collect_paragraphs

BUCKET_BYTES = 128 << 20  # approximate bytes of rows per temporary file, which is sorted in memory
MAX_BUCKETS = 500  # temporary files that are open at once
_QUESTION, _ANSWER, _DUPLICATE = b"1", b"2", b"3"
_SITE = ".stackexchange.com"
_END = b"</posts>"
_LINKS_END = re.compile(rb"</postlinks>|<postlinks\s*/>")
_BLOCKS = {"p", "li", "blockquote", "div", "ul", "ol", "hr", "pre", "dd", "dt", "td", "th"}
_DROPPED = {"table", "script", "style", "iframe", "h1", "h2", "h3", "h4", "h5", "h6"}
_DAMAGE = (OSError, EOFError, ValueError)
_FRAME = re.compile(rb"(?:\xef\xbb\xbf)?\s*</?(?:\?xml\b|posts\b|!)")  # lines before and after the rows

# Until 2013 the site wrote this above a question that was closed as a duplicate, with the title of the original, which
# would give away the answer to objectives and test sets about duplicates.
_CLOSED = re.compile(r"\A\s*<blockquote>\s*<p><strong>Possible Duplicate:?</strong>.*?</blockquote>", re.I | re.S)


def _get_number(name: bytes, row: bytes) -> bytes:
    match = re.search(rb' %s="(\d+)"' % name, row)  # a quotation mark in a value is written &quot;
    return match[1] if match else b""


def _read_threads(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields each question with its answers and links, as unparsed rows.

    If a file is damaged, the rows before the damage are yielded, and then the first error is raised.
    """
    links: dict[int, list[int]] = {}
    damage: list[Exception] = []
    try:
        _read_duplicates(source, links)
    except OSError as error:
        damage.append(error)
    with contextlib.ExitStack() as stack:
        count = min(MAX_BUCKETS, 1 + estimate_text(source.name, source.size) // BUCKET_BYTES)
        buckets = [stack.enter_context(tempfile.TemporaryFile(prefix="kinspan-")) for _ in range(count)]
        try:
            yield from _distribute(source, buckets)
        except _DAMAGE as error:
            damage.append(error)
        yield from _join_threads(buckets, links)
    if damage:
        raise damage[0]


def _join_threads(buckets: Sequence[IO[bytes]], links: dict[int, list[int]]) -> Iterator[tuple[int, dict | Rejected]]:
    """Yields each question with its answers and links, and Omitted for each answer or link without its question."""
    group_of = name_groups({str(a): map(str, originals) for a, originals in links.items()})
    number = 0
    for bucket in buckets:
        bucket.seek(0)
        questions: dict[int, bytes] = {}
        answers: dict[int, list[bytes]] = defaultdict(list)
        for row in bucket:
            if _get_number(b"PostTypeId", row) != _QUESTION:
                answers[int(_get_number(b"ParentId", row))].append(row)
            elif (question_id := int(_get_number(b"Id", row))) not in questions:
                questions[question_id] = row
            else:
                yield number, Rejected(f"a second question has the Id {question_id}", len(row))
        for question_id, row in questions.items():
            number += 1
            linked = {"links": links.pop(question_id, []), "group": group_of.get(str(question_id), "")}
            yield number, {"question": row, "answers": answers.pop(question_id, []), **linked}
        for _ in range(sum(map(len, answers.values()))):
            yield number, Omitted("an answer whose question is not in the file")
    for _ in range(sum(map(len, links.values()))):
        yield number, Omitted("a link of a question that is not in the file")


def _read_duplicates(source: SourceFile, originals: dict[int, list[int]]) -> None:
    """Adds to ``originals`` the questions that each question duplicates, if there is a PostLinks.xml.

    Raises OSError, which names that file, if it cannot be read, since the file of posts is not damaged.
    """
    link_files = (source.find_beside("PostLinks.xml" + suffix) for suffix in ("", *COMPRESSED_SUFFIXES))
    for file in filter(None, link_files):
        try:
            row: bytes | Rejected = b""
            for _, row in read_lines(file, None):
                if isinstance(row, bytes) and _get_number(b"LinkTypeId", row) == _DUPLICATE:
                    question, original = int(_get_number(b"PostId", row)), int(_get_number(b"RelatedPostId", row))
                    originals.setdefault(question, []).append(original)
            if isinstance(row, Rejected) or not _LINKS_END.search(row):
                raise EOFError("it does not end with </postlinks>: it is cut off, or no file of links")
        except _DAMAGE as error:
            raise OSError(f"{name_file(file.name)} beside it: {quote_error(error)}") from error
        break


def _distribute(source: SourceFile, buckets: Sequence[IO[bytes]]) -> Iterator[tuple[int, Rejected]]:
    """Writes each question and its answers to the same temporary file; yields the other lines.

    Raises EOFError if the file has no end tag, and ValueError if a second file follows the first.
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
        kind = _get_number(b"PostTypeId", row)
        question_id = _get_number(b"Id" if kind == _QUESTION else b"ParentId", row)
        if kind not in (_QUESTION, _ANSWER):
            yield number, Omitted("a post that is neither question nor answer")
        elif not question_id:
            yield number, Rejected("a post without a number", len(row))
        else:
            buckets[int(question_id) % len(buckets)].write(row if row.endswith(b"\n") else row + b"\n")
    if not ended and isinstance(row, bytes):
        raise EOFError(f"it does not end with {_END.decode()}: it is cut off, or no file of posts")


def _parse_thread(record: Record, keep_code: bool = False) -> list[Document]:
    question = parse_xml(record.content["question"]).attrib
    rows = [parse_xml(row).attrib for row in record.content["answers"]]
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
            code_blocks=sum(row.get("Body", "").count("<pre") for row in (question, *rows)),
        )
    ]


def extract_paragraphs(html: str, keep_code: bool) -> list[str]:
    """Extracts the paragraphs of a post without headings and tables; ``keep_code``: with blocks of code."""
    from lxml.html import HTMLParser, document_fromstring

    if not html.strip():
        return []
    body = document_fromstring(f"<div>{html}</div>".encode(), parser=HTMLParser(encoding="utf-8", huge_tree=True))
    return collect_paragraphs(body, _BLOCKS, _DROPPED if keep_code else _DROPPED | {"pre"}, "br")


def name_forum(file: str) -> str:
    """Names a forum by the folder or archive of its posts: beer for beer.stackexchange.com.7z. Ids begin with it."""
    head, colon, rest = file.partition(":")
    if colon and "/" not in head and not rest.startswith(":"):
        file = rest  # without the reader's prefix, or the scheme of a URL
    archive, _, inside = file.rpartition("::")
    folder = Path(inside).parent.name or (Path(archive).stem if archive else Path(file).absolute().parent.name)
    return folder.removesuffix(_SITE) or name_file(file)


# Questions ------------------------------------------------------------------------------------------------


def _read_questions(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict[str, Any] | Rejected]]:
    links: dict[str, list[str]] = defaultdict(list)
    for number, line in read_lines(source, None):
        if isinstance(line, bytes) and b'"links"' in line:
            with contextlib.suppress(Rejected):  # _parse_line will report it
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
    """Returns the id of a question, or a name that no link can have."""
    return (find_id(fields) if isinstance(fields, dict) else "") or f"\n{number}"


def _parse_line(record: Record) -> list[Document]:
    fields = load_json(record.content["line"])
    question = _parse_question(fields)
    question |= {"group": record.content["group"], "source": record.name}  # links are resolved within a source
    return [replace(document, **question) for document in parse_fields(fields, record)]


def _parse_question(fields: Any) -> dict[str, Any]:
    """Returns the fields that only questions have. Raises Rejected if one has the wrong type."""
    if not isinstance(fields, dict):
        raise Rejected("not a JSON object")
    answers, accepted, links = fields.get("answers") or [], fields.get("accepted"), fields.get("links") or []
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise Rejected('"answers" is not a list of strings')
    if accepted is not None and (type(accepted) is not int or not 0 <= accepted < len(answers)):
        raise Rejected('"accepted" is not an index into "answers", from 0 on')
    if not isinstance(links, list) or not all(isinstance(link, str | int) for link in links):
        raise Rejected('"links" is not a list of ids')
    links = [str(link) for link in links]
    return {"answers": answers, "accepted": accepted, "links": links, "title_is_text": True, "is_post": True}


def name_groups(links: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Returns the group of each linked question, named by the first member that duplicates none, else by the first."""
    pairs = [(source, target) for source, targets in links.items() for target in targets]
    members = sorted({*chain(*pairs)}, key=lambda member: (bool(links.get(member)), member))
    number = {member: n for n, member in enumerate(members)}
    edges = np.array([[number[source], number[target]] for source, target in pairs], dtype=int).reshape(-1, 2)
    lowest = connect(edges[:, 0], edges[:, 1], len(members))
    return {member: members[n] for member, n in zip(members, lowest.tolist(), strict=True)}


STACKEXCHANGE = Reader(
    _read_threads,
    _parse_thread,
    has_code=True,
    may_be_compressed=True,
    names=r"Posts\.xml",
    companions=r"PostLinks\.xml",
    ignored=r"(?:Badges|Comments|PostHistory|Tags|Users|Votes)\.xml",
    modules=("lxml",),
)
QUESTIONS = Reader(_read_questions, _parse_line, may_be_compressed=True)
