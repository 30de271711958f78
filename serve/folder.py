"""Reads and writes an index on disk: a manifest, and the data folder that it names, whose files never change.

A change writes a new data folder and then replaces the manifest atomically, so that a killed process leaves the index
as it was; the next change removes data folders that the manifest does not name.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import hash_file, lock_file, read_object, sync, verify_once, write_atomically

FORMAT = 5
MANIFEST, LOCK = "index.json", "lock"
DATA = re.compile(r"data-[0-9a-f]{16}")
REBUILD = "build the index again, in another folder"


class BiEncoderFacts(TypedDict):
    """Identifies the bi-encoder of an index."""

    name: str
    place: str
    fingerprint: str
    dimension: int
    similarity: str


class IndexSettings(TypedDict):
    max_length: int
    precision: str
    language: str


@dataclass(frozen=True)
class Manifest:
    """Describes an index: its data folder, number of answers, and the bytes and SHA-256 of each file."""

    model: BiEncoderFacts
    settings: IndexSettings
    data: str
    rows: int
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    format: int = FORMAT


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest. Raises KinspanError if there is no index, or its manifest is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        unfinished = folder.is_dir() and any(DATA.fullmatch(path.name) for path in folder.iterdir())
        raise KinspanError(f"{folder} {'is unfinished: run kinspan index again' if unfinished else 'is not an index'}")
    content = read_object(path, REBUILD)
    if content.get("format") != FORMAT:
        raise KinspanError(f"{path} has format {content.get('format')!r}, not {FORMAT}: {REBUILD}")
    try:
        manifest = Manifest(**content)
        missing = BiEncoderFacts.__annotations__.keys() - manifest.model.keys()
        missing |= IndexSettings.__annotations__.keys() - manifest.settings.keys()
        outside = [name for name in manifest.files if Path(name).is_absolute() or ".." in Path(name).parts]
        is_valid = not missing and not outside and manifest.rows > 0 and DATA.fullmatch(manifest.data)
    except (TypeError, AttributeError):
        is_valid = None
    if not is_valid:
        raise KinspanError(f"{path} is damaged: {REBUILD}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest atomically, and removes all other data folders."""
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    for path in folder.iterdir():
        if path.name != manifest.data and DATA.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def list_files(data: Path, ignored: str) -> dict[str, tuple[int, str]]:
    """Syncs all files but ``ignored`` and its unfinished copies to disk, and returns their bytes and SHA-256."""
    files = sorted(path for path in data.rglob("*") if path.is_file() and not path.name.startswith(ignored))
    for path in (*files, *{path.parent for path in files}, data.parent):
        sync(path)
    return {path.relative_to(data).as_posix(): (path.stat().st_size, hash_file(path)) for path in files}


def check_files(folder: Path, manifest: Manifest) -> Path:
    """Checks the files, their hashes once per machine, and returns the data folder."""
    for name, (size, digest) in manifest.files.items():
        path = folder / manifest.data / name
        if not path.is_file() or path.stat().st_size != size:
            raise KinspanError(f"{path} is missing or damaged: copy the index again, or {REBUILD}")
        verify_once(path, digest, partial(_check_hash, path, digest))
    return folder / manifest.data


def _check_hash(path: Path, digest: str) -> None:
    if hash_file(path) != digest:
        raise KinspanError(f"{path} is damaged: copy the index again, or {REBUILD}")


def expect_index_or_nothing(folder: Path) -> None:
    """Raises KinspanError if ``folder`` is a file or contains anything but an index."""
    if folder.exists() and not folder.is_dir():
        raise KinspanError(f"--output_dir {folder} is a file: choose a folder")
    names = [] if not folder.is_dir() or (folder / MANIFEST).is_file() else [path.name for path in folder.iterdir()]
    if any(name != LOCK and not name.startswith(MANIFEST) and not DATA.fullmatch(name) for name in names):
        raise KinspanError(f"--output_dir {folder} contains something else than an index: choose another folder")


@contextmanager
def lock_index(folder: Path) -> Iterator[None]:
    """Holds the index's lock. Raises KinspanError if another process holds it, or the folder cannot be written."""
    expect_index_or_nothing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_file(folder / LOCK, f"--output_dir {folder}: another process is changing this index; wait for it"):
            yield
    except OSError as error:
        raise KinspanError(f"--output_dir {folder}: the index cannot be written: {quote_error(error)}") from error
