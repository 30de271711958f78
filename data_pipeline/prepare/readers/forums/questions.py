"""``questions:FILE.jsonl``: questions of a help desk or of any forum, a line of JSON each.

A line has ``title``, and ``text`` or ``paragraphs`` as its body, and may have ``id``, ``answers`` (a list of strings),
``accepted`` (the number of the accepted answer, from 0 on) and ``links`` (ids of questions that it is a duplicate of).
Nothing is dropped for its length, since people posted it.
"""

from dataclasses import replace
from typing import Any

from data_pipeline.prepare.document import Document, Rejected

from ..jsonl import load_json, parse_fields
from ..lines import read_lines, split_bytes
from ..reader import Reader, Record


def _parse(record: Record) -> list[Document]:
    fields = load_json(record.content)
    found = _parse_question(fields) if isinstance(fields, dict) else {}
    return [replace(document, **found) for document in parse_fields(fields, record)]


def _parse_question(fields: dict[str, Any]) -> dict[str, Any]:
    """What Document has of a question alone. Raises Rejected where it is not as it must be."""
    answers, accepted, links = fields.get("answers") or [], fields.get("accepted"), fields.get("links") or []
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise Rejected('"answers" is not a list of strings')
    if accepted is not None and (type(accepted) is not int or not 0 <= accepted < len(answers)):
        raise Rejected('"accepted" is not the number of one of the "answers", from 0 on')
    if not isinstance(links, list) or not all(isinstance(link, str | int) for link in links):
        raise Rejected('"links" is not a list of ids')
    links = [str(link) for link in links]
    return {"answers": answers, "accepted": accepted, "links": links, "title_is_text": True, "is_post": True}


READER = Reader(read_lines, _parse, may_be_compressed=True, split=split_bytes)
