"""Finds packaged files, reads YAML and JSON, hashes and locks files, and writes them atomically."""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOLCK, ENOSYS, ENOTSUP
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from data_pipeline.core.errors import KinspanError, quote_error

log = logging.getLogger(__name__)
JsonObject = dict[str, Any]
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def find_file(name: str) -> Path | None:
    """Returns the file ``name`` in the working directory or, as ds_configs/zero2.json, beside the packages; or None."""
    return next((path for path in (Path(name), PROJECT_ROOT / name) if path.is_file()), None)


def load_python(path: str, label: str) -> ModuleType:
    """Runs a Python file of the user's. Raises KinspanError, which begins with ``label``, if that fails."""
    spec = importlib.util.spec_from_file_location(f"kinspan_own_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise KinspanError(f"{label} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise KinspanError(f"{label} cannot be loaded: {type(error).__name__}: {quote_error(error)}") from error
    return module


def _make_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    if len(made := dict(pairs)) < len(pairs):
        raise ValueError("a key is set twice")
    return made


parse_json = json.JSONDecoder(object_pairs_hook=_make_object).decode  # ``json.loads`` keeps the last of equal keys


def read_object(path: Path, advice: str) -> JsonObject:
    """Reads the JSON object in ``path``. Raises KinspanError, which ends with ``advice``, if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KinspanError(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 raise a ValueError
        raise KinspanError(f"{path} is damaged ({quote_error(error)}): {advice}") from error
    if not isinstance(value, dict):
        raise KinspanError(f"{path} is damaged (it holds no JSON object): {advice}")
    return value


class SettingsLoader(yaml.SafeLoader):
    """Refuses a key that is set twice, of which YAML keeps the last."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [str(key.value) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.YAMLError(f"{twice} is set twice")
        return node


def read_yaml(path: Path, label: str) -> Any:
    """Reads a YAML file. Raises KinspanError, which begins with ``label``, if it cannot be read."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), SettingsLoader)
    except OSError as error:
        raise KinspanError(f"{label} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # a date with a 13th month is a ValueError
        raise KinspanError(f"{label} cannot be read: {quote_error(error)}") from error


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Makes the folder of ``--output_dir`` if it is missing. Raises KinspanError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be made: {error.strerror}") from error


def lock_handle(handle: int, folder: Path, how: int) -> None:
    """Locks an open file of this folder, or warns that its storage has no locks. ``how``: as of fcntl.flock"""
    try:
        fcntl.flock(handle, how)
    except OSError as error:
        if error.errno not in (ENOLCK, ENOSYS, ENOTSUP):
            raise
        _note_no_locks(folder)


@cache
def _note_no_locks(folder: Path) -> None:  # once, not for each of a cache's files
    log.warning("%s: this storage has no locks; write to it from one process alone", folder)


@contextmanager
def hold_lock(path: Path, wait: bool = True) -> Iterator[int]:
    """Holds an exclusive lock on a file, created if missing. Without ``wait``, raises BlockingIOError if taken."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        lock_handle(handle, path.parent, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path, in_use: str) -> Iterator[None]:
    """Keeps other processes out while the block runs. Raises KinspanError with the text ``in_use`` if one is in."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path, wait=False))
        except BlockingIOError as error:
            raise KinspanError(in_use) from error
        yield


def find_cache() -> Path:
    """Returns this program's folder in the user's cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinspan"


def verify_once(path: Path, claim: str, verify: Callable[[], None]) -> None:
    """Calls ``verify`` unless this machine did so before for this file and claim, and the file is unchanged since.

    A mark in the user's cache then records the file's path, inode, size and times; beside the file, the sender of a
    corpus could forge it. Processes that need the same file wait for the one that verifies. If no mark can be written,
    each verifies for itself.
    """
    stat = path.stat()
    state = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {claim}".encode()
    key = f"{socket.gethostname()}\n{path.resolve()}".encode("utf-8", "surrogateescape")
    with ExitStack() as stack:
        try:
            mark = find_cache() / "verified" / hashlib.sha256(key).hexdigest()
            mark.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(hold_lock(mark))
        except (OSError, RuntimeError):  # a RuntimeError if there is no home
            return verify()
        if os.pread(handle, len(state) + 1, 0) != state:
            verify()
            with suppress(OSError):  # a full disk
                os.ftruncate(handle, 0)
                os.pwrite(handle, state, 0)


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Writes the text, or its lines one after another; on an error, the file stays as it was."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # others may write the same results
    try:
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines([text] if isinstance(text, str) else text)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # the error of a full disk names no file
        raise


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
