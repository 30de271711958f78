"""Documents, and why a record may be turned away."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Document:
    """A document before cleaning. Readers of forums give more than the first four.

    id:            unique in its source; with the text it decides whether the document is held out for validation
    accepted:      the number of the accepted answer; None where there is none
    links:         ids of the documents that this one refers to
    group:         a name shared by all documents that links connect; "" where there are no links
    title_is_text: whether the title is kept as token ids too, since it is a text, such as a question
    is_post:       whether a person posted it: it is kept whatever its length and form
    is_part:       whether it was cut off a text that is too long for a document
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


class Rejected(Exception):
    """A record is not a document. The text is the reason that ``rejected.jsonl`` states.

    size: the lost bytes of the input, where the record itself does not come with them
    """

    def __init__(self, reason: str, size: int = 0) -> None:
        super().__init__(reason)
        self.size = size


class Omitted(Rejected):
    """A record is not meant to be a document, as a redirect is not. It is counted by its reason, and not listed."""


class Unreadable(Rejected):
    """A file, or the rest of it, cannot be read: it is damaged, of no known format, or needs an absent library."""
