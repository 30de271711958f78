"""Caches remote shards for all processes of a node. The cache is bounded, and each file is complete or absent.

    NAME-HASH/...            the files of a corpus, named as in its folder; HASH is that of its manifest
    NAME-HASH/.../FILE.lock  locked while a process opens FILE. Its mtime is the time of FILE's last use. During a fetch
                             it is a sparse file of FILE's size, which reserves the room
    NAME-HASH/.../FILE.part  the part of FILE that has arrived
    lock                     locked while shards are evicted

A process also holds a shared lock on each shard that it uses, and only a shard that nobody holds is evicted. The locks
are flock's and end with their process, so what a killed process held can be evicted.
"""

import fcntl
import math
import os
import resource
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import find_cache, hold_lock, lock_handle, sync
from data_pipeline.core.settings import CacheSettings

GIGABYTE = 1e9
ROOM_SECONDS, ROOM_POLL = 60.0, 0.5  # how long to wait for room, and how often to look for it
LOCK, PART = ".lock", ".part"
MAX_OPEN_FILES = 65536


class NodeCache:
    """Manages the cache folder that a node's processes share."""

    def __init__(self, settings: CacheSettings) -> None:
        self.root = Path(settings.folder) if settings.folder else find_cache() / "remote"
        self.limit = settings.gigabytes * GIGABYTE
        self._needs: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # each shard in use holds a file open
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_OPEN_FILES)), hard))
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / "lock").touch()
        except OSError as error:
            raise KinspanError(f"--cache_dir {self.root} cannot be written: {error.strerror}") from error

    def require(self, user: object, num_bytes: int, what: str) -> None:
        """Registers that ``user``, until it is garbage-collected, needs up to ``num_bytes`` of shards at the same time.

        Raises KinspanError if the cache cannot hold what all users of this process need.
        """
        self._needs[user] = num_bytes
        needed = sum(self._needs.values()) / GIGABYTE
        if needed > self.limit / GIGABYTE:
            enough = math.ceil(1000 * needed) / 1000
            raise KinspanError(f"--cache_gb {self.limit / GIGABYTE:g} is too small for {what}: give {enough:.12g}")

    def pin(self, path: Path, size: int, fetch: Callable[[Path], None]) -> tuple[int, bool]:
        """Opens a shard; returns a file descriptor that keeps it in the cache until closed, and whether it was fetched.

        If it is missing, one of the node's processes fetches it, and the others wait.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + PART)
        with hold_lock(path.with_name(path.name + LOCK)) as lock:
            os.ftruncate(lock, 0)  # drops the reservation of a killed process
            os.utime(lock)
            if path.is_file() and path.stat().st_size == size:
                return _open_shared(path), False
            self._reserve(lock, size)
            try:
                fetch(part)
                sync(part)
                handle = _open_shared(part)
                part.replace(path)
                return handle, True
            finally:
                part.unlink(missing_ok=True)
                os.ftruncate(lock, 0)

    def _reserve(self, lock: int, size: int) -> None:
        """Reserves room for a shard. Raises KinspanError if none becomes free within ROOM_SECONDS."""
        deadline = time.monotonic() + ROOM_SECONDS
        while time.monotonic() < deadline:
            with hold_lock(self.root / "lock"):
                if self.evict_down_to(self.limit - size):
                    return os.ftruncate(lock, size)
            time.sleep(ROOM_POLL)
        raise KinspanError(f"--cache_gb {self.limit / GIGABYTE:g}: all of {self.root} is in use: give more")

    def evict_down_to(self, limit: float) -> bool:
        """Removes unused shards, least recently used first, down to ``limit`` bytes; returns whether that sufficed."""
        locks = sorted(self.root.glob(f"**/*.arrow{LOCK}"), key=lambda path: path.stat().st_mtime_ns)
        shards = [path.with_suffix("") for path in locks]
        used = sum(path.stat().st_size for path in (*locks, *filter(Path.exists, shards)))
        for path in locks:
            if used <= limit:
                break
            used -= _evict(path)
        return used <= limit


open_cache = cache(NodeCache)  # one NodeCache per settings and process


def _open_shared(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    lock_handle(handle, path.parent, fcntl.LOCK_SH)
    return handle


def _evict(lock: Path) -> int:
    """Removes a shard that nobody uses, or the rest of a killed fetch; returns the number of bytes freed."""
    shard, freed = lock.with_suffix(""), 0
    with suppress(BlockingIOError), hold_lock(lock, wait=False) as handle:
        freed = os.fstat(handle).st_size
        os.ftruncate(handle, 0)
        shard.with_name(shard.name + PART).unlink(missing_ok=True)
        if shard.is_file():
            with hold_lock(shard, wait=False):
                freed += shard.stat().st_size
                shard.unlink()
    return freed
