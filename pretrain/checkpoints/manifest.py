"""The manifest of a checkpoint: its files with their sizes and SHA-256. A checkpoint that differs is not read."""

import errno
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from data_pipeline.core.files import hash_file, sync, write_atomically

MANIFEST = "manifest.json"
# Errors that the content of a folder causes. Any other comes from the storage, and the folder may be whole
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


def describe_file(path: Path) -> dict[str, Any]:
    """Returns a file's entry in the manifest, once the file is safe on the disk."""
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def write_manifest(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    """Writes the manifest, which makes ``folder`` whole. ``files``: for each path within it, its entry"""
    for parent in sorted({(folder / name).parent for name in files}):
        sync(parent)
    write_atomically(folder / MANIFEST, json.dumps({"files": files}, indent=1))


def find_damage(folder: Path, needed: Collection[str] | None = None) -> str | None:
    """Returns what is wrong with a folder by its manifest; None if every file, or each one ``needed``, is as written.

    Raises OSError where the storage does not let the folder be read, because it may be whole nevertheless.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        entries = [
            (name, entry["bytes"], entry["sha256"]) for name, entry in files.items() if needed is None or name in needed
        ]
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        return f"{MANIFEST} is missing or damaged"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is missing or damaged"
    if not files:
        return f"{MANIFEST} names no file"
    for name, size, digest in entries:
        path = folder / name
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{MANIFEST} names a file outside: {name!r}"
            if path.stat().st_size != size or hash_file(path) != digest:
                return f"{name} is damaged"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in DAMAGE:
                raise
            return f"{name!r} cannot be read: {error}"
    if needed is not None:
        missing = set(needed) - files.keys()
        return f"{MANIFEST} does not name {min(missing)}" if missing else None
    known = {folder / MANIFEST, *(folder / name for name in files)}
    return next((f"{p.name} is not of it" for p in sorted(folder.rglob("*")) if p.is_file() and p not in known), None)
