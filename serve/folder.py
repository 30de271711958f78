"""An index on disk: a manifest, and one folder of files that never change, which the manifest names.

A change writes a new folder beside the old one and then replaces the manifest in one step, so that a process that is
killed leaves the index as it was; the next change removes what no manifest names.
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

FORMAT = 3
MANIFEST, LOCK = "index.json", "lock"
DATA = re.compile(r"data-[0-9a-f]{16}")
AGAIN = "build the index again, in another folder"


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
    approximate: bool


@dataclass(frozen=True)
class Manifest:
    """Describes an index: a hash of its first answers, the folder of its files, and each one's bytes and SHA-256."""

    model: BiEncoderFacts
    settings: IndexSettings
    source: str
    data: str = ""
    rows: int = 0
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    format: int = FORMAT


def read_manifest(folder: Path) -> Manifest:
    """Raises KinspanError if there is no index, or its manifest is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        unfinished = folder.is_dir() and any(DATA.fullmatch(path.name) for path in folder.iterdir())
        raise KinspanError(
            f"{folder} {'was not finished: run kinspan index once more' if unfinished else 'is no index'}"
        )
    content = read_object(path, AGAIN)
    if content.get("format") != FORMAT:
        raise KinspanError(f"{path} has format {content.get('format')!r}, not {FORMAT}: {AGAIN}")
    try:
        manifest = Manifest(**content)
        names = BiEncoderFacts.__annotations__.keys() - manifest.model.keys()
        names |= IndexSettings.__annotations__.keys() - manifest.settings.keys()
        outside = [name for name in manifest.files if Path(name).is_absolute() or ".." in Path(name).parts]
        is_valid = not names and not outside and manifest.rows > 0 and DATA.fullmatch(manifest.data)
    except (TypeError, AttributeError):
        is_valid = None
    if not is_valid:
        raise KinspanError(f"{path} is damaged: {AGAIN}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes this the index's state, and removes other data."""
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    for path in folder.iterdir():
        if path.name != manifest.data and DATA.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def list_files(data: Path, ignored: str) -> dict[str, tuple[int, str]]:
    """Returns bytes and SHA-256 of all files but ``ignored``, which are now on the disk."""
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.name != ignored)
    for place in (*files, *{path.parent for path in files}, data.parent):
        sync(place)
    return {path.relative_to(data).as_posix(): (path.stat().st_size, hash_file(path)) for path in files}


def check_files(folder: Path, manifest: Manifest) -> Path:
    """Returns the folder of the files, after checking their hashes once per machine."""
    for name, (size, digest) in manifest.files.items():
        path = folder / manifest.data / name
        if not path.is_file() or path.stat().st_size != size:
            raise KinspanError(f"{path} is missing or damaged: copy the index again, or {AGAIN}")
        verify_once(path, digest, partial(_check_hash, path, digest))
    return folder / manifest.data


def _check_hash(path: Path, digest: str) -> None:
    if hash_file(path) != digest:
        raise KinspanError(f"{path} is damaged: copy the index again, or {AGAIN}")


def expect_index_or_nothing(folder: Path) -> None:
    """Raises KinspanError if a folder holds something that is no index, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise KinspanError(f"--output_dir {folder} is a file: choose a folder")
    names = [] if not folder.is_dir() or (folder / MANIFEST).is_file() else [path.name for path in folder.iterdir()]
    if any(name not in (LOCK, f"{MANIFEST}.tmp") and not DATA.fullmatch(name) for name in names):
        raise KinspanError(f"--output_dir {folder} holds something that is no index: choose another folder")


@contextmanager
def lock_index(folder: Path) -> Iterator[None]:
    """Lets one process at a time change the index. Raises KinspanError if it is in use or cannot be written."""
    expect_index_or_nothing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_file(folder / LOCK, f"--output_dir {folder}: another process is changing this index; wait for it"):
            yield
    except OSError as error:
        raise KinspanError(f"--output_dir {folder}: the index cannot be written: {quote_error(error)}") from error
