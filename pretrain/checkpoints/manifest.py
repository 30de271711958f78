"""The manifest of a checkpoint: its files with their sizes and SHA-256. A checkpoint that differs is not read."""

import errno
import json
import os
from collections.abc import Collection
from pathlib import Path

import torch

from data_pipeline.core.files import hash_file, sync, write_atomically

MANIFEST = "manifest.json"
TAG = "engine"  # the folder of DeepSpeed's files in a checkpoint
BASE = "base"  # in the metadata of an adapter's weights: the fingerprint of its base
# Errors that the content of a folder causes. Any other comes from the storage, and the folder may be whole
DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


Entry = dict[str, int | str]
Files = dict[str, Entry]


def find_base(module: torch.nn.Module) -> str | None:
    """Returns the fingerprint of the frozen base of an adapter that is trained; None for a whole model."""
    return getattr(module, "base", None)


def make_entry(path: Path) -> Entry:
    """Returns a file's entry in the manifest, once the file is safe on the disk."""
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def write_manifest(folder: Path, files: Files) -> None:
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
        for name in files if needed is None else needed:
            path, size, digest = folder / name, files[name]["bytes"], files[name]["sha256"]
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{MANIFEST} names a file outside: {name!r}"
            if path.stat().st_size != size or hash_file(path) != digest:
                return f"{name} is damaged"
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        return f"{os.path.relpath(error.filename or folder / MANIFEST, folder)} is missing or damaged"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    if needed is not None:
        return None
    known = {folder / MANIFEST, *(folder / name for name in files)}
    extra = [path.name for path in folder.rglob("*") if path.is_file() and path not in known]
    return f"{min(extra)} is not of it" if extra else None if files else f"{MANIFEST} names no file"
