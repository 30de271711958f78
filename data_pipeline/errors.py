"""The one exception that a user is meant to see."""


class KinspanError(Exception):
    """Something the user can mend. Its text is one line that names the file, line or flag and what to do.

    Entries in ``launch/`` print it without a traceback and exit with status 2.
    """
