"""Files are verified once per machine: the first process that needs a file reads all of it, and others trust its mark.

A mark is a small file in the user's cache, bound to the machine and to the file's place, identity, size and times. It
never lies beside what it is of: whoever sends a corpus could send marks with it.
"""

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def find_cache() -> Path:
    """Returns this program's folder in the user's cache, which may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinspan"


def verify_once(path: Path, claim: str, verify: Callable[[], None]) -> None:
    """Calls ``verify`` unless this file was found to be what ``claim`` says, and is unchanged since.

    Processes that need the same file at the same time wait for the one that verifies it. Where the cache cannot be
    written, each verifies for itself; where the disk is full, no mark is left. What ``verify`` raises comes out, and
    leaves no mark.
    """
    place = f"{socket.gethostname()}\n{path.resolve()}"
    mark = find_cache() / "verified" / hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = mark.open("a+", encoding="utf-8", errors="replace")
        fcntl.flock(file, fcntl.LOCK_EX)
    except (OSError, RuntimeError):  # a RuntimeError where there is no home
        verify()
        return
    try:
        facts = _state_facts(path, claim)
        file.seek(0)
        if file.read() == facts:
            return
        verify()
        if _state_facts(path, claim) == facts:  # it did not change while it was read
            with suppress(OSError):
                file.truncate(0)
                file.write(facts)
    finally:
        with suppress(OSError):  # closing writes what is not written yet, and closes even where it cannot
            file.close()


def _state_facts(path: Path, claim: str) -> str:
    stat = path.stat()
    return f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {claim}"
