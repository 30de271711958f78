"""Files that come with the packages, YAML and damaged JSON, hashes, locks, and writing files whole or not at all."""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOLCK, ENOTSUP
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from data_pipeline.core.errors import KinspanError, quote_error

log = logging.getLogger(__name__)
JsonObject = dict[str, Any]
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def find_file(name: str) -> Path | None:
    """Returns the file of that name in the working directory or beside the packages, so that ds_configs/zero2.json and
    launch/recipes/quickstart.yaml mean ours from any directory; None where there is neither."""
    return next((path for path in (Path(name), PROJECT_ROOT / name) if path.is_file()), None)


def load_python(path: str, named: str) -> ModuleType:
    """Runs a Python file of the user's. Raises KinspanError, which begins with ``named``, where that fails."""
    spec = importlib.util.spec_from_file_location(f"kinspan_own_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise KinspanError(f"{named} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise KinspanError(f"{named} cannot be loaded: {type(error).__name__}: {quote_error(error)}") from error
    return module


def read_object(path: Path, advice: str) -> JsonObject:
    """Reads the JSON object in ``path``. Raises KinspanError, which ends with ``advice``, where there is none."""
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


def read_yaml(path: Path, named: str) -> Any:
    """Reads a YAML file. Raises KinspanError, which begins with ``named``, where it cannot be read."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), SettingsLoader)
    except OSError as error:
        raise KinspanError(f"{named} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # a date with a 13th month is a ValueError
        raise KinspanError(f"{named} cannot be read: {quote_error(error)}") from error


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Makes the folder of ``--output_dir`` where it is not there. Raises KinspanError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be made: {error.strerror}") from error


@contextmanager
def hold_lock(path: Path, wait: bool = True) -> Iterator[int]:
    """Holds an exclusive lock on a file, made where there is none. Raises BlockingIOError instead of waiting."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path, in_use: str) -> Iterator[None]:
    """Keeps other processes out while the block runs. Raises KinspanError with the text ``in_use`` where one is in.

    Where the storage has no locks, nobody is kept out.
    """
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(path, wait=False))
        except BlockingIOError as error:
            raise KinspanError(in_use) from error
        except OSError as error:
            if error.errno not in (ENOLCK, ENOTSUP):
                raise
            log.warning("%s: this storage has no locks; write to it from one process alone", path.parent)
        yield


def find_cache() -> Path:
    """Returns this program's folder in the user's cache, which may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinspan"


def verify_once(path: Path, claim: str, verify: Callable[[], None]) -> None:
    """Calls ``verify`` unless this machine did for this file and claim before, and the file is unchanged since.

    Then a mark is left in the user's cache, bound to the file's place, identity, size and times: beside the file,
    whoever sends a corpus could send marks with it. Processes that need the same file wait for the one that verifies.
    Where no mark can be written, each verifies for itself.
    """
    stat = path.stat()
    facts = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {claim}".encode()
    place = f"{socket.gethostname()}\n{path.resolve()}".encode("utf-8", "surrogateescape")
    with ExitStack() as held:
        try:
            mark = find_cache() / "verified" / hashlib.sha256(place).hexdigest()
            mark.parent.mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(hold_lock(mark))
        except (OSError, RuntimeError):  # a RuntimeError where there is no home
            return verify()
        if os.pread(handle, len(facts) + 1, 0) != facts:
            verify()
            with suppress(OSError):  # a full disk
                os.ftruncate(handle, 0)
                os.pwrite(handle, facts, 0)


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Writes the text, or its lines one after another, so that the file is whole or as it was before.

    What UTF-8 cannot hold, such as half of a surrogate pair, is written as an escape sequence.
    """
    partial = path.with_name(path.name + ".tmp")
    try:
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines([text] if isinstance(text, str) else text)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # that of a full disk names no file
        raise


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
