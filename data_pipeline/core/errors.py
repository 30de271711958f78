"""Defines the one exception that a user is meant to see, and quotes the errors of other libraries."""

from errno import EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS

# How a file system refuses: whatever was being written, the user can mend it.
FILE_SYSTEM_ERRORS = (EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS)
_NEEDS_TYPE = (TypeError, AttributeError, LookupError, AssertionError)  # their texts say nothing without their types
_MAX_CHARS = 300


class KinspanError(Exception):
    """Signals a mistake that the user can mend. The text is one line that names the file, line or flag, and what to do.

    The entries in ``launch/`` print it without a traceback and exit with status 2.
    """


def quote_first_line(error: Exception) -> str:
    """Quotes the first line of another library's error, with its type where the text alone says nothing."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"its files are damaged ({type(error).__name__}: {line})" if _needs_type(error) else line


def quote_error(error: BaseException) -> str:
    """Quotes the whole of another library's error as one line, cut where it is long."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = f"{type(error).__name__}: {text}" if _needs_type(error) else text
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " ..."


def _needs_type(error: BaseException) -> bool:
    return isinstance(error, _NEEDS_TYPE)
