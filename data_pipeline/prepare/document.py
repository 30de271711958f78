"""Documents, the names of their ids, and the exceptions for records that are no document."""

import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache

log = logging.getLogger(__name__)
# Names that a field or column of ids may have in any file; the first one present counts
ROW_IDS = ("id", "_id")
DOCUMENT_IDS = (*ROW_IDS, "answer_id", "aid", "passage_id", "pid", "docid", "doc_id", "docno", "corpus-id")
QUESTION_IDS = (*ROW_IDS, "question_id", "query_id", "query-id", "qid")
LOOKS_LIKE_ID = re.compile(r"(?:.*[\W_])?(?i:u?u?id|key|no|nr|number)|.*I[Dd]")


@lru_cache(256)
def note_unread_ids(place: str, names: tuple[str, ...], read: tuple[str, ...]) -> None:
    """Logs, once, the names that look like ids and are not read."""
    if unread := [name for name in names if name not in read and LOOKS_LIKE_ID.fullmatch(name)]:
        log.warning("%s; %s is not read, known are %s", place, ", ".join(unread), ", ".join(read))


@dataclass(frozen=True)
class Document:
    """A document before cleaning. Only readers of forums set the fields from ``answers`` to ``is_post``.

    id:            unique in its source; a post's decides whether it is held out for validation
    accepted:      index of the accepted answer; None if there is none
    links:         ids of the documents that this one refers to
    group:         name shared by all documents that links connect; "" if there are no links
    title_is_text: whether the title is tokenised too, since it is a text, such as a question
    is_post:       whether it is a forum post, which is kept whatever its length and form
    is_part:       whether it was cut out of a text that is too long for one document
    code_blocks:   number of its blocks of code, which ``paragraphs`` may have or lack
    url:           its address, "" if that is unknown or is the id
    is_parsed:     whether its reader took off all markup, so that "<b>" in it is text
    headings:      the heading above each paragraph, of formats whose reader knows it
    """

    id: str
    title: str
    paragraphs: list[str]
    source: str
    answers: list[str] = field(default_factory=list)
    accepted: int | None = None
    links: list[str] = field(default_factory=list)
    group: str = ""
    title_is_text: bool = False
    is_post: bool = False
    is_part: bool = False
    code_blocks: int = 0
    url: str = ""
    is_parsed: bool = False
    headings: list[str] = field(default_factory=list)


class Rejected(Exception):
    """A record is not a document. The message is the reason that ``rejected.jsonl`` gives.

    size: number of rejected bytes, where the content of the record is not available
    """

    def __init__(self, reason: str, size: int = 0) -> None:
        super().__init__(reason)
        self.size = size


class Omitted(Rejected):
    """A record is not meant to be a document, such as a redirect. It is counted by its reason, and not listed."""


class Unreadable(Rejected):
    """A file, or the rest of it, cannot be read: it is damaged, of unknown format, or needs a missing library."""
