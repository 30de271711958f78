"""What every reader yields, and why a document may be turned away."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A document as its reader found it, before cleaning.

    id:         unique in its source; decides whether the document is held out for validation
    title:      for people; may be empty
    paragraphs: running text, one string a paragraph
    source:     the file or collection that it came from
    """

    id: str
    title: str
    paragraphs: list[str]
    source: str


class Rejected(Exception):
    """A record that is no document: its text is the reason, as ``rejected.jsonl`` will say it."""
