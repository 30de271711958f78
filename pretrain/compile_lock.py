"""Guards DeepSpeed's first start, which compiles its CPU collectives, against a lock that nobody holds.

A process that is killed while it compiles leaves its lock file, and torch then waits for it for ever, in silence.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from torch.utils.cpp_extension import get_default_build_root

GRACE = 120.0  # seconds in which a lock may be that of another machine with the same home
PATIENCE = 20.0  # seconds of waiting before it is told


@contextmanager
def no_dead_locks() -> Iterator[None]:
    """While the block runs, compile locks that no process holds are removed, and a long wait is told."""
    done = Event()
    watch = Thread(target=_watch, args=(done,), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(done: Event) -> None:
    began, told = time.monotonic(), False
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    while not done.is_set():
        for lock in root.glob("**/lock"):
            if is_dead(lock):
                lock.unlink(missing_ok=True)
                print(f"removed {lock}, left by a process that died while compiling", flush=True)
            elif not told and time.monotonic() - began > PATIENCE:
                print(f"waiting for DeepSpeed's collectives to be compiled, once on a machine: {lock}", flush=True)
                told = True
        done.wait(1.0)


def is_dead(lock: Path) -> bool:
    """Whether no process of this machine has the file open, as its holder has, and it is not new."""
    if not Path("/proc/self/fd").is_dir():
        return False
    try:
        old = time.time() - lock.stat().st_mtime > GRACE
    except OSError:
        return False  # released meanwhile
    return old and not any(_same_file(handle, lock) for handle in Path("/proc").glob("[0-9]*/fd/*"))


def _same_file(handle: Path, lock: Path) -> bool:
    with suppress(OSError):  # that process ended, or is another user's
        return handle.samefile(lock)
    return False
