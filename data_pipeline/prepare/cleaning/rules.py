"""Which paragraphs and documents are kept."""

import hashlib
from dataclasses import dataclass, field

from data_pipeline.core.errors import KinspanError


@dataclass(frozen=True)
class Rules:
    """Which paragraphs and documents are kept, and how many documents are held out for validation.

    The two lengths are those of Di Liello et al. (2022), appendix A.1.

    min_paragraph_chars: a shorter paragraph is dropped; characters are counted after white space was folded
    min_document_chars:  a document whose kept paragraphs are shorter together is dropped
    validation_share:    the share of documents that are held out, by a hash of their ids
    languages:           codes of ISO 639, such as en; a document in another language is dropped. Empty keeps all
    skip_steps:          names of the steps of ``steps.STEPS`` that are switched off
    clean_with:          Python files that define ``STEPS``, a list of more steps
    title_texts:         whether a title is kept as a text of its own, as a question's always is, for title_sentence
    steps_hash:          of the contents of those files, so that changed steps make another corpus; it is computed
    """

    min_paragraph_chars: int = 60
    min_document_chars: int = 200
    validation_share: float = 0.02
    languages: list[str] = field(default_factory=list)
    skip_steps: list[str] = field(default_factory=list)
    clean_with: list[str] = field(default_factory=list)
    title_texts: bool = False
    steps_hash: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.clean_with:
            contents = b"".join(_read_steps(name) for name in self.clean_with)
            object.__setattr__(self, "steps_hash", hashlib.sha256(contents).hexdigest()[:16])


def _read_steps(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise KinspanError(f"--clean_with {name} cannot be read: {error.strerror}") from error
