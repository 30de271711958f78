"""The output folder of a run: checks that it is writable and free or this run's, claims it, and locks it.

    run.json        the run's identity and facts, written when the run claims the folder
    checkpoints/    see pretrain.checkpoints.writer
    summary.json    written last of all: the run is complete
    lock            held by the run that uses the folder
    stacks/         see pretrain.engine.watch; written even before run.json if a rank is lost in the set-up

Pre-training and fine-tuning share these names and rules.
"""

import fcntl
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, lock_handle, read_object, write_atomically

LOCK, RUN, STACKS, SUMMARY, CHECKPOINTS = "lock", "run.json", "stacks", "summary.json", "checkpoints"
SHARED = ".shared-"  # prefix of the files by which ranks check that they share the output folder
ADVICE = "choose another --output_dir, or delete that folder"
# The flags behind the facts that identify a run
FLAGS = {"model_weights": "model", "start": "model", "corpus_content": "corpus", "train": "data", "dev": "data"}
FLAGS |= {"deepspeed": "deepspeed_config", "precision_used": "precision", "own_objectives": "objective"}
FORMAT = 6  # version of the folder; raised when a resumed run would draw or count differently


def open_folder(name: str | Path) -> Path:
    """Makes the output folder if it is missing. Raises KinspanError if it is not writable, or is another program's."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in filter(Path.exists, (folder, folder / CHECKPOINTS)):
            with tempfile.TemporaryFile(dir=path, prefix="."):  # NFS shows it to other ranks
                pass
    except OSError as error:
        raise KinspanError(f"--output_dir {error.filename or folder} cannot be written: {error.strerror}") from error
    names = {path.name for path in folder.iterdir() if not path.name.startswith((".", f"{RUN}."))}
    if names - {LOCK, STACKS} and not (folder / RUN).exists():
        raise KinspanError(f"--output_dir {folder} is not empty and holds no run: choose another folder")
    return folder


def check_shared(folder: Path) -> None:
    """Raises KinspanError on all ranks if one of them does not see what rank 0 writes into the folder."""
    from pretrain.engine import ranks  # torch takes seconds to import

    name = ranks.broadcast_from_rank_0(lambda: f"{SHARED}{secrets.token_hex(8)}")
    ranks.broadcast_from_rank_0(lambda: (folder / name).touch())
    visible = ranks.gather((folder / name).exists())
    ranks.broadcast_from_rank_0(lambda: (folder / name).unlink(missing_ok=True))
    if not all(visible):
        raise KinspanError(f"--output_dir {folder}: rank {visible.index(False)} does not see there what rank 0 wrote")


def holds_this_run(folder: Path, record: JsonObject) -> bool:
    """Returns whether the folder holds this run, complete or with a checkpoint. Raises KinspanError if it holds others.

    record: the content of run.json, with the run's identity under "identity", in which the entries that "changed" names
            may differ
    """
    path = folder / RUN
    if path.exists() and ((folder / SUMMARY).exists() or any((folder / CHECKPOINTS).glob("step-*[0-9]"))):
        _check_same_run(path, record)
        return True
    return False


def claim_folder(folder: Path, record: JsonObject) -> bool:
    """Claims the folder if it is free, by writing ``record`` to run.json; returns whether it was free."""
    if holds_this_run(folder, record):
        return False
    write_record(folder, record)
    return True


def write_record(folder: Path, record: JsonObject) -> None:
    """Writes run.json."""
    write_atomically(folder / RUN, json.dumps(record | {"format": FORMAT}, indent=1) + "\n")


def _check_same_run(path: Path, record: JsonObject) -> None:
    stored = read_object(path, ADVICE)
    if stored.pop("format", None) != FORMAT:
        raise KinspanError(f"{path} is damaged or of another version of kinspan: {ADVICE}")
    theirs = stored.get("identity")
    if not isinstance(theirs, dict):
        raise KinspanError(f"{path} is damaged (it names no run): {ADVICE}")
    ours = json.loads(json.dumps(record["identity"]))  # with the types that JSON gives back
    for key in (ours | theirs).keys() - set(record.get("changed", ())):
        if theirs.get(key) != ours.get(key):
            change = f"--{FLAGS.get(key, key)}: {str(theirs.get(key))[:200]}, not {str(ours.get(key))[:200]}"
            raise KinspanError(f"--output_dir {path.parent} holds a different run ({change}): {ADVICE}")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other runs off ``folder`` while the block runs; rank 0 holds the lock for all ranks.

    The system releases the lock of a process that has died. If the folder holds no run at the end, the lock file is
    removed, and then the folder if it is empty. Raises KinspanError if a live run holds the lock.
    """
    from pretrain.engine import ranks  # torch takes seconds to import

    lock_files: list[IO[str]] = []
    ranks.broadcast_from_rank_0(lambda: lock_files.append(_lock_file(folder / LOCK)))
    try:
        yield
    finally:
        for file in lock_files:
            if not (folder / RUN).exists():
                (folder / LOCK).unlink(missing_ok=True)
                with suppress(OSError):  # it is not empty, a link or a mount
                    folder.rmdir()
            file.close()


def _lock_file(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        lock_handle(file.fileno(), path.parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = " ".join(file.read(200).split()) or "another process"
        raise KinspanError(f"--output_dir {path.parent} is in use by {holder}, which may still be stopping") from error
    # The last run may have removed the file meanwhile, and another one may have created it anew
    if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
        file.close()
        return _lock_file(path)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
