"""Reads and writes a corpus's ``manifest.json``."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import DamagedFile, KinspanError, quote_error

FORMAT_VERSION = 2
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class ShardInfo:
    """Holds the manifest's entry of a shard.

    usable: per objective and split, {"anchors": usable paragraphs, "documents": documents that have one}
    """

    file: str
    documents: int
    paragraphs: int
    sentences: int
    tokens: int
    usable: dict[str, dict[str, dict[str, int]]]
    bytes: int
    sha256: str
    split: str


@dataclass(frozen=True)
class Manifest:
    """Holds ``manifest.json``. It is written last: a folder without it is not a corpus.

    tokenizer: its name, revision, fingerprint (see tokenizers.fingerprint_tokenizer) and vocab_size
    rules:     the cleaning rules and the share of documents that are held out
    sources:   for each input, its name, its licence and origin where they are known, and how much of it was kept
    counts:    what was read, kept and dropped, and why
    """

    tokenizer: dict[str, Any]
    rules: dict[str, Any]
    sources: list[dict[str, Any]]
    shards: list[ShardInfo]
    totals: dict[str, int]
    fingerprint: str
    format_version: int = FORMAT_VERSION
    counts: dict[str, int] = field(default_factory=dict)


def fingerprint_corpus(shards: list[ShardInfo], tokenizer_fingerprint: str) -> str:
    """Returns a corpus's identity by content: a hash of the hashes of its shards and of its tokenizer."""
    parts = [tokenizer_fingerprint] + [s.sha256 for s in shards]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_manifest(folder: Path, name: str) -> Manifest:
    """Reads the manifest of the corpus in a folder, which messages call ``name``.

    Raises DamagedFile if it is damaged, and KinspanError if it is missing, has another format version, or names a file
    outside the folder.
    """
    file, path = folder / "manifest.json", f"{name}/manifest.json"
    if not file.is_file():
        raise KinspanError(f"no corpus at {name} (it has no manifest.json): make one with kinspan prepare")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields["format_version"] != FORMAT_VERSION:
            raise KinspanError(f"{path} has format version {fields['format_version']}, not {FORMAT_VERSION}")
        shards = [ShardInfo(**s) for s in fields.pop("shards")]
        manifest = Manifest(shards=shards, **fields)
        is_edited = fingerprint_corpus(shards, manifest.tokenizer["fingerprint"]) != manifest.fingerprint
        names = [s.file for s in shards] + [str(p.relative_to(folder)) for p in (folder / "tokenizer").glob("**/*")]
        outside_files = [name for name in names if not (folder / name).resolve().is_relative_to(folder.resolve())]
    except OSError as error:
        raise KinspanError(f"{path} cannot be read: {quote_error(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged ({quote_error(error)}): prepare the corpus again") from error
    if is_edited:
        raise DamagedFile(f"{path} is damaged: its fingerprint is not that of its shards")
    if outside_files:
        raise KinspanError(f"{path} names a file outside its folder: {outside_files[0]}")
    return manifest
