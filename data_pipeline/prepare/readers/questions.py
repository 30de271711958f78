"""``questions:FILE.jsonl``: questions of a help desk or of any forum, a line of JSON each.

A line has ``title``, and ``text`` or ``paragraphs`` as its body, and may have ``id``, ``answers`` (a list of strings),
``accepted`` (the number of the accepted answer, from 0 on) and ``links`` (ids of questions of the same file that it is
a duplicate of). Nothing is dropped for its length, since people posted it.

A file is one part, however large, since a link may connect any two of its lines.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from .jsonl import find_id, load_json, parse_fields, read_json_lines
from .lines import read_lines
from .reader import FilePart, Reader, Record, SourceFile, name_record


def _read(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict[str, Any] | Rejected]]:
    links: dict[str, list[str]] = {}
    for name, targets in _read_links(source):
        links.setdefault(name, []).extend(targets)  # two lines may have one id
    group_of = name_groups(links)
    for number, line in read_json_lines(source, None):
        if isinstance(line, Rejected):
            yield number, line
        else:
            yield number, {"line": line, "group": group_of.get(_name(line, number), "") if group_of else ""}


def _read_links(source: SourceFile) -> Iterator[tuple[str, list[str]]]:
    """Yields what each question is a duplicate of, for those that have links and are as they must be."""
    for number, line in read_lines(source, None):
        if isinstance(line, bytes) and b'"links"' in line:
            try:
                links = _parse_question(load_json(line))["links"]
            except Rejected:
                continue
            if links:
                yield _name(line, number), links


def _name(line: bytes, number: int) -> str:
    """Names a question in its group: by its id, or by what no link can name."""
    try:
        fields = load_json(line)
    except Rejected:
        return ""
    return (find_id(fields) if isinstance(fields, dict) else "") or f"\n{number}"


def _parse(record: Record) -> list[Document]:
    fields = load_json(record.content["line"])
    question = _parse_question(fields)
    question |= {"group": record.content["group"], "source": name_record(record)}  # in which its links lead
    return [replace(document, **question) for document in parse_fields(fields, record)]


def _parse_question(fields: Any) -> dict[str, Any]:
    """Reads the fields that only questions have. Raises Rejected where it is not as it must be."""
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
    """Names the group of each linked question, by one of its members: chains, siblings and circles are one group each.

    A group is named by a member that is a duplicate of nothing, which most have one of, or else by any; by the first in
    the order of characters where there are several.

    links: for a question what it is a duplicate of
    """
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


READER = Reader(_read, _parse, may_be_compressed=True)
