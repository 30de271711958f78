"""Lets only one run at a time use an output folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from data_pipeline.core.errors import KinspanError
from pretrain.engine import ranks

LOCK, RUN = "lock", "run.json"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other runs off ``folder`` while the block runs; rank 0 holds the lock for all ranks.

    The system releases the lock of a process that has died, so that a killed run never blocks the next. Between
    machines the lock is only as good as the storage's ``flock``. Where the folder holds no run in the end, as a refused
    one leaves it, the lock goes, and so does a folder with nothing else. Raises KinspanError where a live run holds it.
    """
    locked: list[IO[str]] = []
    ranks.broadcast_from_rank_0(lambda: locked.append(_lock_file(folder / LOCK)))
    try:
        yield
    finally:
        for file in locked:
            if not (folder / RUN).exists():
                (folder / LOCK).unlink(missing_ok=True)
                if not any(folder.iterdir()):
                    folder.rmdir()
            file.close()


def _lock_file(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise KinspanError(f"--output_dir: {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = " ".join(file.read(200).split()) or "another process"
        raise KinspanError(
            f"--output_dir {path.parent} is in use by {holder}, which may still be stopping if it was just asked to: "
            "wait for that run, stop it, or choose another folder"
        ) from error
    except OSError:
        pass  # the storage has no locks, but checkpoints are whole or absent even so
    if not _is_same(path, file):  # the run before has just removed it, and another one may have made it anew
        file.close()
        return _lock_file(path)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _is_same(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
