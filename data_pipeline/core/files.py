"""Files that come with the packages, YAML and damaged JSON, hashes, locks, and writing files whole or not at all."""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from data_pipeline.core.errors import KinspanError, quote_error

log = logging.getLogger(__name__)
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def find_file(name: str) -> Path | None:
    """Returns the file of that name in the working directory or beside the packages, so that ds_configs/zero2.json and
    launch/recipes/quickstart.yaml mean ours from any directory; None where there is neither."""
    return next((path for path in (Path(name), PROJECT_ROOT / name) if path.is_file()), None)


def load_python(path: str, named: str) -> ModuleType:
    """Runs a Python file of the user's. Raises KinspanError, which begins with ``named``, where that fails."""
    try:
        spec = importlib.util.spec_from_file_location(f"kinspan_own_{Path(path).stem}", path)
        assert spec is not None and spec.loader is not None, "no Python file"  # noqa: PT018
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise KinspanError(f"{named} cannot be loaded: {type(error).__name__}: {quote_error(error)}") from error
    return module


def read_object(path: Path, advice: str) -> dict[str, Any]:
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


def read_yaml(path: Path, named: str) -> Any:
    """Reads a YAML file. Raises KinspanError, which begins with ``named``, where it cannot be read or repeats a key."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), UniqueKeyLoader)
    except OSError as error:
        raise KinspanError(f"{named} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # a date with a 13th month is a ValueError
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        reason = f"line {mark.line + 1}: {problem}" if mark and problem else quote_error(error)
        raise KinspanError(f"{named} cannot be read: {reason}") from error


class UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself takes the last of several values of a key in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Raises ComposerError where a key that is a scalar stands in the mapping twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(problem=f"{key.value} is set twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def as_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object's dict, as a hook of ``json.loads``. Raises ValueError where a key stands twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} is set twice")
    return record


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
def lock_file(path: Path, in_use: str) -> Iterator[None]:
    """Keeps other processes out while the block runs. Raises KinspanError with the text ``in_use`` where one is in.

    Where the storage has no locks, nobody is kept out.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise KinspanError(in_use) from error
        except OSError:
            log.warning("%s: this storage has no locks; write to it from one process alone", path.parent)
        yield


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


def describe_write_error(path: Path, error: Exception) -> str:
    """Returns a line that names the file and why it could not be written."""
    return f"{path} cannot be written: {(isinstance(error, OSError) and error.strerror) or quote_error(error)}"


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
