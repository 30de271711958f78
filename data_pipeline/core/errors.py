"""Defines the one exception that a user is meant to see, and quotes errors and addresses without their secrets."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS

# A full or read-only disk, a wrong path, no permission: whatever was being written, the user can mend these.
FILE_SYSTEM_ERRORS = (EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS)
_NEEDS_TYPE = (TypeError, AttributeError, LookupError, AssertionError)  # their texts say nothing without their types
_MAX_CHARS = 300
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")
_USER = re.compile(r"(?<=://)[^\s/]*@")
# Up to "::", behind which is a file of an archive, or to a sentence's mark; a "?" without "=" may be a wildcard of S3
_QUERY = re.compile(r"(https?://[^\s?#]*|\w://[^\s?]*(?=\?[\w.~%-]+=))[?#](?:(?!::|[:;,.)'\"]+(?:\s|$))\S)*")


def redact(text: str) -> str:
    """Returns the text with its addresses as they are shown and stored: without user name, password and query."""
    return _QUERY.sub(r"\1", _USER.sub("", text)) if "://" in text else text


def make_printable(text: str) -> str:
    """Replaces control characters, which a terminal would interpret, but tabs and line breaks."""
    return _CONTROL.sub(" ", text)


class KinspanError(Exception):
    """Signals a mistake that the user can mend, in one line that names the flag or file; the exit status is 2."""

    def __init__(self, text: str) -> None:
        super().__init__(redact(text))


class DamagedFile(KinspanError):
    """Signals that a file is not as it was written. A fetched one may arrive intact the next time."""


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Prefixes the text of a KinspanError of the block."""
    try:
        yield
    except KinspanError as error:
        raise KinspanError(f"{prefix}: {error}") from error


def quote_error(error: BaseException) -> str:
    """Quotes another library's error as one line, cut if it is long, with its type if the text alone says little."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    text = f"{type(error).__name__}: {text}" if isinstance(error, _NEEDS_TYPE) else text
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " ..."
