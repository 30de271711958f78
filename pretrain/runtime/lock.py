"""One run at a time on an output folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from data_pipeline.errors import KinspanError
from pretrain.runtime import ranks

LOCK = "lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other runs off ``folder`` while the block runs; rank 0 holds the lock for all ranks.

    The system drops the lock of a process that died, so that a dead run is never in the way. Between machines it is
    only as good as the storage's ``flock``. Raises KinspanError where a live run holds it.
    """
    taken: list[IO[str]] = []
    ranks.broadcast_from_rank_0(lambda: taken.append(_take(folder / LOCK)))
    try:
        yield
    finally:
        for file in taken:
            file.close()


def _take(path: Path) -> IO[str]:
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise KinspanError(f"--output_dir: {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = " ".join(file.read(200).split()) or "another process"
        raise KinspanError(
            f"--output_dir {path.parent} is in use by {holder}: wait for that run, stop it, or choose another folder"
        ) from error
    except OSError:
        pass  # storage without locks: checkpoints are whole or absent all the same
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
