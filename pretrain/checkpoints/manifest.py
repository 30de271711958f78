"""A checkpoint's manifest: its files with their sizes and SHA-256. A checkpoint that differs from it is not loaded."""

import errno
import json
import os
from collections.abc import Collection
from pathlib import Path

import torch

from data_pipeline.core.files import hash_file, sync, write_atomically

MANIFEST = "manifest.json"
TAG = "engine"  # the folder of DeepSpeed's files in a checkpoint
STATES = f"{TAG}/[!.]*_states.pt"  # all that DeepSpeed reads there
BASE = "base"  # metadata key in an adapter's weights: the fingerprint of the frozen base
# Errors that a damaged folder causes. All others come from the storage, and the folder may be undamaged
DAMAGE_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}

Entry = dict[str, int | str]
Files = dict[str, Entry]


def find_base(module: torch.nn.Module) -> str | None:
    """Returns the fingerprint of the frozen base of an adapter; None for a full model."""
    return getattr(module, "base_fingerprint", None)


def make_entry(path: Path) -> Entry:
    """Syncs a file to the disk, and returns its entry in the manifest."""
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def write_manifest(folder: Path, files: Files) -> None:
    """Writes the manifest, which completes the checkpoint ``folder``. ``files``: entries by path in the folder"""
    for parent in sorted({(folder / name).parent for name in files}):
        sync(parent)
    write_atomically(folder / MANIFEST, json.dumps({"files": files}, indent=1))


def find_damage(folder: Path, needed: Collection[str] | None = None) -> str | None:
    """Returns how a folder differs from its manifest; None if all files, or those ``needed``, are as written.

    Other files, such as .DS_Store, are ignored, unless DeepSpeed would read them.
    Raises OSError if the storage cannot be read, because the folder may be undamaged nevertheless.
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
        if error.errno not in DAMAGE_ERRNOS:
            raise
        return f"{os.path.relpath(error.filename or folder / MANIFEST, folder)} is missing or damaged"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    if needed is None and (strays := {*folder.glob(STATES)} - {folder / name for name in files}):
        return f"{min(strays).name} is not in {MANIFEST}"
    return None if files or needed is not None else f"{MANIFEST} names no file"
