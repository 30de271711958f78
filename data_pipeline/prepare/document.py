"""What every reader yields, and why a record may be turned away."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A document as its reader found it, before cleaning.

    id:         is unique in its source, and decides whether the document is held out for validation
    title:      is shown to people, and may be empty
    paragraphs: hold running text, one string per paragraph
    source:     is the file or collection that the document came from
    """

    id: str
    title: str
    paragraphs: list[str]
    source: str


class Rejected(Exception):
    """A record is not a document. The text is the reason that ``rejected.jsonl`` states."""


class Unreadable(Rejected):
    """The rest of a file cannot be read: nobody knows how many documents it holds."""
