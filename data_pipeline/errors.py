"""The one exception that a user is meant to see, and other libraries' errors as part of its line."""

from errno import EACCES, EDQUOT, ENAMETOOLONG, ENOSPC, EPERM, EROFS

# What a file system says no with: for the user to mend, wherever it comes up.
OF_THE_FILE_SYSTEM = (EACCES, EDQUOT, ENAMETOOLONG, ENOSPC, EPERM, EROFS)
_SLIPS = (TypeError, AttributeError, LookupError, AssertionError)  # whose texts alone say nothing
_MOST = 300  # characters


class KinspanError(Exception):
    """Something the user can mend. Its text is one line that names the file, line or flag and what to do.

    Entries in ``launch/`` print it without a traceback and exit with status 2.
    """


def first_line(error: Exception) -> str:
    """The first line of another library's error, with its type where the text alone says nothing."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"its files do not fit together or are damaged ({type(error).__name__}: {line})" if _slip(error) else line


def one_line(error: BaseException) -> str:
    """All of another library's error in one line, cut where it is long."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = f"{type(error).__name__}: {text}" if _slip(error) else text
    return text if len(text) <= _MOST else text[:_MOST] + " ..."


def _slip(error: BaseException) -> bool:
    return isinstance(error, _SLIPS)
