"""A node's copy of remote shards: bounded, shared by its processes, whole or absent.

    NAME-HASH/corpus/...           the files of a corpus as they stand in its folder; hash: of its manifest
    NAME-HASH/control/FILE.lock    held by the process that fetches FILE; its time says when FILE was used last
    NAME-HASH/control/FILE.part    what has come of FILE so far
    NAME-HASH/control/FILE.room    while FILE is fetched: as large, without taking the disk, so that its room is counted
    lock                           held while room is made
    opening-...                    a manifest that arrives

A process holds a shared lock on each shard that it uses, and a shard leaves under an exclusive one: so what is in use
stays, and what a killed process used is free. All locks are flock's, which end with their process.
"""

import fcntl
import os
import resource
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from data_pipeline import verification
from data_pipeline.core.errors import KinspanError

GIGABYTE = 1e9
DEFAULT_GIGABYTES = 20.0
ROOM_SECONDS, ROOM_POLL = 60.0, 0.5  # how long, and how often, to look for room that others are about to give back
LOCK, PART, ROOM = ".lock", ".part", ".room"
OPENING = "opening-"  # how the folders begin in which manifests arrive
OPENING_SECONDS = 86400.0  # after which such a folder was left behind
MAX_FILES = 65536


@dataclass(frozen=True)
class CacheSettings:
    """Where a node keeps what it fetches (None: in the user's cache), and how many gigabytes of shards at most."""

    folder: str | None = None
    gigabytes: float = DEFAULT_GIGABYTES


@dataclass(frozen=True)
class Entry:
    """A shard's places in the cache."""

    corpus: Path  # the copy of the corpus's folder
    file: str  # the shard's name within it

    @property
    def path(self) -> Path:
        return self.corpus / self.file

    def control(self, suffix: str) -> Path:
        return self.corpus.parent / "control" / (quote(self.file, safe="") + suffix)


class NodeCache:
    """The folder that a node's processes share. All that they agree on lies there."""

    def __init__(self, settings: CacheSettings) -> None:
        self.root = Path(settings.folder) if settings.folder else verification.find_cache() / "remote"
        self.gigabytes, self.limit = settings.gigabytes, settings.gigabytes * GIGABYTE
        self._needs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        allow_many_files()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with lock_file(self.root / "lock"):
                self._remove_old()
        except OSError as error:
            raise KinspanError(f"--cache_dir {self.root} cannot be written: {error.strerror}") from error

    def require(self, reader: object, num_bytes: int, what: str) -> None:
        """Note that a reader, as long as it lives, uses so many bytes of shards at a time.

        Raises KinspanError where the cache cannot hold them beside what this process's other readers use: then shards
        would leave that are about to be used.
        """
        self._needs[reader] = num_bytes
        needed = sum(self._needs.values())
        if needed > self.limit:
            raise KinspanError(
                f"--cache_gb {self.gigabytes:g} is too small for {what}: the shards of the present block and the next "
                f"one take up to {needed / GIGABYTE:.3g} GB; give --cache_gb at least as much"
            )

    def make_room(self, entry: Entry, size: int) -> None:
        """Reserve room for a shard, for which those leave that were used longest ago and are not in use.

        Raises KinspanError where all is in use, and stays so for a minute.
        """
        ends = time.monotonic() + ROOM_SECONDS
        while True:
            with lock_file(self.root / "lock"):
                if self._evict_down_to(self.limit - size):
                    with entry.control(ROOM).open("wb") as room:
                        room.truncate(size)
                    return
            if time.monotonic() > ends:
                raise KinspanError(
                    f"--cache_gb {self.gigabytes:g}: all of {self.root} is in use, perhaps by other runs too: give "
                    "more, or another --cache_dir"
                )
            time.sleep(ROOM_POLL)

    def _remove_old(self) -> None:
        """Remove the folders of processes that were killed while they opened a corpus."""
        for folder in self.root.glob(f"{OPENING}*"):
            with suppress(FileNotFoundError):  # another process is done with it
                if time.time() - folder.stat().st_mtime > OPENING_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)

    def _evict_down_to(self, limit: float) -> bool:
        """Remove shards until at most ``limit`` bytes are left; returns whether that was possible."""
        used, found = 0, []
        for room in self.root.glob(f"*/control/*{ROOM}"):
            used += 0 if _sweep(_read_entry(room)) else _measure(room)
        for lock in self.root.glob(f"*/control/*{LOCK}"):
            entry = _read_entry(lock)
            if size := _measure(entry.path):
                used += size
                found.append((_find_time(lock), size, entry))
        for _, size, entry in sorted(found, key=lambda place: place[0]):
            if used <= limit:
                break
            used -= size if _evict(entry) else 0
        return used <= limit


def allow_many_files() -> None:
    """Raise the number of files that this process may open: each shard in use holds one open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@cache
def open_cache(settings: CacheSettings) -> NodeCache:
    """The node's cache of these settings, one object in a process."""
    return NodeCache(settings)


def pin(entry: Entry, size: int) -> int | None:
    """Open a shard, and keep it in the cache until the file descriptor that is returned is closed.

    None where it is not there, or has another size.
    """
    try:
        handle = os.open(entry.path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(handle, fcntl.LOCK_SH)
    state = os.fstat(handle)
    if state.st_nlink and state.st_size == size:  # without a link it has just left
        with suppress(FileNotFoundError):
            os.utime(entry.control(LOCK))
        return handle
    os.close(handle)
    return None


def pin_fetched(entry: Entry) -> int:
    """Give a shard that has been fetched its own name; as of ``pin``, before it has it, so that it cannot leave."""
    part = entry.control(PART)
    handle = os.open(part, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    part.replace(entry.path)
    os.utime(entry.control(LOCK))
    return handle


@contextmanager
def lock_file(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file, made where there is none. Raises BlockingIOError instead of waiting."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def _read_entry(control: Path) -> Entry:
    return Entry(control.parent.parent / "corpus", unquote(control.stem))


def _sweep(entry: Entry) -> bool:
    """Remove what a process left that died while it fetched; returns whether nobody is fetching."""
    try:
        with lock_file(entry.control(LOCK), wait=False):
            for suffix in (PART, ROOM):
                entry.control(suffix).unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


def _evict(entry: Entry) -> bool:
    """Remove a shard unless some process uses it; returns whether it is gone."""
    try:
        with lock_file(entry.path, wait=False):
            entry.path.unlink()
    except BlockingIOError:
        return False
    return True


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _find_time(path: Path) -> int:
    return path.stat().st_mtime_ns
