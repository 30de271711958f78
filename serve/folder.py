"""An index on disk: folders of files that never change, and a manifest that names those that count.

A change writes new folders beside the old ones, and then replaces the manifest in one step. So a process that is killed
leaves the index as it was before, and what no manifest names is removed by the next change.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import describe_write_error, hash_file, lock_file, read_object, sync, write_atomically
from data_pipeline.verification import verify_once
from pretrain.modeling.default_model import name_installed

FORMAT = 2  # 1 counted words without their stems, and left function words out
MANIFEST, LOCK = "index.json", "lock"
VECTORS, WORDS, REMOVED = "vectors", "words", "removed"
ROWS = "rows.npy"  # the file of REMOVED
# What a change removes when no manifest names it any more; other folders that lie in an index are somebody's
OWN = re.compile(rf"({VECTORS}|{WORDS}|{REMOVED})-[0-9a-f]+")
AGAIN = "build the index again, in another folder"


@dataclass(frozen=True)
class IndexPart:
    """A folder of files: of answers and their vectors, of their words, or of the rows that were removed.

    rows:  answers that it holds
    files: bytes and SHA-256 of each
    """

    name: str
    rows: int
    files: dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Manifest:
    """What an index is made of.

    model:      the bi-encoder, as ``describe_model`` has it
    settings:   of the encoding: ``max_length``, ``precision``, and whether parts have an approximate index
    source:     hash of the answers that it was built of at first
    generation: number of the last change
    parts:      whose rows are counted through, in this order
    words:      of all rows that were there when it was written
    removed:    rows that were removed; None where there is none
    """

    model: dict[str, Any]
    settings: dict[str, Any]
    source: str
    generation: int = 0
    parts: tuple[IndexPart, ...] = ()
    words: IndexPart | None = None
    removed: IndexPart | None = None
    format: int = field(default=FORMAT)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def every_part(self) -> list[IndexPart]:
        return [*self.parts, *filter(None, (self.words, self.removed))]

    @property
    def state(self) -> str:
        """Names what the index holds now: its model, and the files of its parts."""
        held = [self.model["fingerprint"], *(part.files for part in self.every_part)]
        return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:16]

    def count_answers(self) -> int:
        return self.rows - (self.removed.rows if self.removed else 0)


def read_manifest(folder: Path) -> Manifest:
    """Raises KinspanError where there is no index, or its manifest cannot be true."""
    if not (folder / MANIFEST).is_file():
        expect_first_build(folder)
        unfinished = any(folder.glob(f"{VECTORS}-*"))
        reason = "was not finished: run kinspan index once more" if unfinished else "is no index, see kinspan index"
        reason = reason if folder.exists() else "is no index: there is no such folder"
        raise KinspanError(f"{folder} {reason}")
    found = read_object(folder / MANIFEST, AGAIN)
    if found.get("format") != FORMAT:
        raise KinspanError(f"{folder / MANIFEST} has format {found.get('format')!r}, not {FORMAT}: {AGAIN}")
    try:
        named: dict[str, Any] = {name: _read_part(found[name]) for name in ("words", "removed") if found[name]}
        manifest = Manifest(**{**found, "words": None, "removed": None, "parts": ()})
        manifest = replace(manifest, parts=tuple(map(_read_part, found["parts"])), **named)
        if (place := manifest.model["place"]) != (name := name_installed(place)):  # earlier versions kept its folder
            manifest = replace(manifest, model=manifest.model | {"name": name, "place": name})
        needed = {"name", "place", "fingerprint", "dimension", "similarity"} - manifest.model.keys()
        needed |= {"max_length", "precision", "approximate"} - manifest.settings.keys()
        whole = isinstance(manifest.generation, int) and bool(manifest.parts) and bool(manifest.words) and not needed
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KinspanError(f"{folder / MANIFEST} is damaged: {AGAIN}") from error
    if not whole:
        raise KinspanError(f"{folder / MANIFEST} is damaged: {AGAIN}")
    return manifest


def expect_first_build(folder: Path) -> None:
    """Raises KinspanError where a folder without a manifest holds more than a build that was cut short."""
    later = (path for path in folder.glob(f"{WORDS}-*") if path.name != f"{WORDS}-{1:05d}")
    if any(folder.glob(f"{REMOVED}-*")) or any(later):
        raise KinspanError(
            f"{folder / MANIFEST} is missing, and answers were added or removed since the index was built: copy the "
            f"index again, or {AGAIN}"
        )


def _read_part(found: dict[str, Any]) -> IndexPart:
    name, rows = found["name"], found["rows"]
    if Path(name).name != name or not isinstance(rows, int) or rows < 0:
        raise ValueError(name)
    files = {Path(file).name: (int(size), str(digest)) for file, (size, digest) in found["files"].items()}
    return IndexPart(name, rows, files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes this the index's state, and removes what it does not name."""
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    named = {part.name for part in manifest.every_part} | {MANIFEST, LOCK}
    for path in folder.iterdir():
        if path.name not in named and OWN.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def expect_index_or_nothing(folder: Path) -> None:
    """Raises KinspanError where a folder holds something that is no index, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise KinspanError(f"--output_dir {folder} is a file: choose a folder")
    if folder.is_dir() and not is_ours(folder):
        raise KinspanError(f"--output_dir {folder} holds something that is no index: choose another folder")


@contextmanager
def lock_index(folder: Path) -> Iterator[None]:
    """Lets one process at a time change the index. Raises KinspanError where it is in use or cannot be written."""
    expect_index_or_nothing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be made: {error.strerror}") from error
    try:
        with lock_file(folder / LOCK, f"--output_dir {folder}: another process is changing this index; wait for it"):
            yield
    except OSError as error:
        raise KinspanError(f"the index {describe_write_error(folder, error)}") from error


def is_ours(folder: Path) -> bool:
    """Whether a folder holds an index, or nothing but what is to become one."""
    if (folder / MANIFEST).is_file():
        return True
    return all(path.name in (LOCK, f"{MANIFEST}.tmp") or OWN.fullmatch(path.name) for path in folder.iterdir())


def start_part(folder: Path, kind: str, generation: int) -> Path:
    """An empty folder for the files of a part, which is none until a manifest names it."""
    path = folder / f"{kind}-{generation:05d}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def finish_part(path: Path, rows: int, names: Iterable[str] | None = None) -> IndexPart:
    """What a manifest says of a folder, all of whose files, or those of these names, are now on the disk."""
    files = sorted(path.iterdir()) if names is None else [path / name for name in names]
    for place in (*files, path, path.parent):
        sync(place)
    return IndexPart(path.name, rows, {file.name: (file.stat().st_size, hash_file(file)) for file in files})


def check_part(folder: Path, part: IndexPart) -> Path:
    """The part's folder, whose files were found whole; their hashes are read once per machine.

    Raises KinspanError, naming the file, where one is absent or damaged.
    """
    for name, (size, digest) in part.files.items():
        path = folder / part.name / name
        if not path.is_file():
            raise KinspanError(f"{path} is missing: copy the index again, or {AGAIN}")
        if path.stat().st_size != size:
            raise KinspanError(
                f"{path} is damaged (it has {path.stat().st_size:,} bytes instead of {size:,}): copy the index again, "
                f"or {AGAIN}"
            )
        verify_once(path, digest, partial(_check_hash, path, digest))
    return folder / part.name


def _check_hash(path: Path, digest: str) -> None:
    if hash_file(path) != digest:
        raise KinspanError(f"{path} is damaged (its hash is another one): copy the index again, or {AGAIN}")


def write_removed(folder: Path, generation: int, rows: np.ndarray) -> IndexPart | None:
    """Keeps the numbers of the rows that were removed, in ascending order."""
    if not len(rows):
        return None
    path = start_part(folder, REMOVED, generation)
    np.save(path / ROWS, np.sort(rows).astype(np.int64))
    return finish_part(path, len(rows))


def read_removed(folder: Path, manifest: Manifest) -> np.ndarray:
    """The numbers of the rows that were removed."""
    if manifest.removed is None:
        return np.zeros(0, dtype=np.int64)
    return np.load(check_part(folder, manifest.removed) / ROWS)
