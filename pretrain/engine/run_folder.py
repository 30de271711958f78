"""The output folder of a run: checks that it can be written and is this run's, and makes it this run's.

    run.json        what makes it this run (its identity), written when the run claims the folder
    checkpoints/    see pretrain.checkpoints.writer
    summary.json    written last of all: the run is complete
    lock            held by the run that uses the folder

Pre-training and fine-tuning share these names and rules.
"""

import fcntl
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, read_object, write_atomically
from pretrain.engine import ranks

LOCK, RUN = "lock", "run.json"
SUMMARY, CHECKPOINTS = "summary.json", "checkpoints"
SHARED = ".shared-"  # how the file begins by which ranks find that they share the output folder
ADVICE = "choose another --output_dir, or delete that folder"
FORMAT = 3  # of such a folder; grows when a run under way would draw or count differently


def open_folder(name: str | Path) -> Path:
    """Returns the output folder, made where there is none. Raises KinspanError where it cannot be written."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in filter(Path.exists, (folder, folder / CHECKPOINTS)):
            with tempfile.TemporaryFile(dir=place):
                pass
    except OSError as error:
        raise KinspanError(f"--output_dir {error.filename or folder} cannot be written: {error.strerror}") from error
    return folder


def check_shared(folder: Path) -> None:
    """Raises KinspanError on all ranks where one of them does not see what rank 0 writes into the folder."""
    name = ranks.broadcast_from_rank_0(lambda: f"{SHARED}{secrets.token_hex(8)}")
    ranks.broadcast_from_rank_0(lambda: (folder / name).touch())
    seen = ranks.gather((folder / name).exists())
    ranks.broadcast_from_rank_0(lambda: (folder / name).unlink(missing_ok=True))
    if not all(seen):
        raise KinspanError(f"--output_dir {folder}: rank {seen.index(False)} does not see there what rank 0 wrote")


def holds_this_run(folder: Path, record: JsonObject) -> bool:
    """Returns whether the folder holds this run, with a checkpoint or complete; False where it is free.

    record: of run.json: the identity, under the key "identity" or by itself
    """
    path = folder / RUN
    if path.exists() and ((folder / SUMMARY).exists() or any((folder / CHECKPOINTS).glob("step-*"))):
        _refuse_difference(path, record)
        return True
    names = {p.name for p in folder.iterdir() if not p.name.startswith(SHARED)} if folder.is_dir() else set()
    if not path.exists() and names - {RUN + ".tmp", LOCK}:
        raise KinspanError(f"--output_dir {folder} is not empty and holds no run: choose another folder")
    return False


def claim_folder(folder: Path, record: JsonObject) -> bool:
    """Makes the folder this run's where it is free, by writing ``record``; returns whether it was."""
    if holds_this_run(folder, record):
        return False
    write_record(folder, record)
    return True


def write_record(folder: Path, record: JsonObject) -> None:
    """Writes run.json."""
    write_atomically(folder / RUN, json.dumps(record | {"format": FORMAT}, indent=1) + "\n")


def _refuse_difference(path: Path, record: JsonObject) -> None:
    kept = read_object(path, ADVICE)
    if kept.pop("format", None) != FORMAT:
        raise KinspanError(f"{path} is damaged or of another version of kinspan: {ADVICE}")
    theirs = kept.get("identity") if "identity" in record else kept
    if not isinstance(theirs, dict):
        raise KinspanError(f"{path} is damaged (it names no run): {ADVICE}")
    ours = json.loads(json.dumps(record.get("identity", record)))  # as it would be read back
    for key in ours | theirs:
        if theirs.get(key) != ours.get(key):
            change = f"its {key} is {str(theirs.get(key))[:200]}, not {str(ours.get(key))[:200]}"
            raise KinspanError(f"--output_dir {path.parent} holds a different run ({change}): {ADVICE}")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other runs off ``folder`` while the block runs; rank 0 holds the lock for all ranks.

    The system releases the lock of a process that has died. Where the folder holds no run in the end, as after a
    refusal, the lock goes, and so does an empty folder. Raises KinspanError where a live run holds it.
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
        raise KinspanError(f"--output_dir {path.parent} is in use by {holder}, which may still be stopping") from error
    except OSError:
        pass  # the storage has no locks, but checkpoints are whole or absent even so
    # The run before may have removed the file in the meantime, and another one may have made it anew
    if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
        file.close()
        return _lock_file(path)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
