"""What a corpus's ``manifest.json`` says, and whether it can be true."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error

FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
SPLITS = ("train", "validation")
MAX_MANIFEST_BYTES = 1 << 27  # enough for a hundred thousand shards
MIN_BYTES = {"documents": 4, "paragraphs": 4, "sentences": 4, "tokens": 2}  # that one of them takes in a shard


class DamagedManifest(KinspanError):
    """A manifest is not as it was written."""


@dataclass(frozen=True)
class ShardInfo:
    """What the manifest says about a shard.

    usable: per objective and split, {"anchors": usable paragraphs, "documents": documents that have one}
    split:  the one to which all its documents belong; empty in format version 1, which mixes them
    """

    file: str
    documents: int
    paragraphs: int
    sentences: int
    tokens: int
    usable: dict[str, dict[str, dict[str, int]]]
    bytes: int
    sha256: str
    split: str = ""


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``. It is written last: a folder without it is no corpus.

    tokenizer: its name, revision, fingerprint (see tokenizers.fingerprint_tokenizer) and vocab_size
    rules:     the cleaning rules and the share of documents that are held out
    sources:   for each input, its name, its licence and origin where they are known, and how much of it was kept
    """

    tokenizer: dict[str, Any]
    rules: dict[str, Any]
    sources: list[dict[str, Any]]
    shards: list[ShardInfo]
    totals: dict[str, int]
    fingerprint: str
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def fingerprint_corpus(shards: list[ShardInfo], tokenizer_fingerprint: str) -> str:
    """Identify a corpus by its content: the hashes of its shards and of its tokenizer."""
    parts = [tokenizer_fingerprint] + [s.sha256 for s in shards]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_manifest(folder: Path, name: str) -> Manifest:
    """Read the manifest of the corpus in a folder, which messages call ``name``.

    Raises DamagedManifest where it is not as it was written, and KinspanError where there is none, it is of another
    format version, or it names what lies outside the folder.
    """
    file, path = folder / "manifest.json", f"{name}/manifest.json"
    if not file.is_file():
        raise KinspanError(f"no corpus at {name} (it has no manifest.json): make one with kinspan prepare")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise DamagedManifest(f"{path} is damaged (larger than any corpus makes it): prepare the corpus again")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields["format_version"] not in READ_VERSIONS:
            raise KinspanError(
                f"{path} is of format version {fields['format_version']}, this program reads up to {FORMAT_VERSION}: "
                "use a newer version of this program, or prepare the corpus again"
            )
        shards = [ShardInfo(**s) for s in fields.pop("shards")]
        manifest = Manifest(shards=shards, **fields)
        wrong = next(filter(None, map(_find_impossible_count, shards)), None) or _find_missing_field(manifest)
        if not wrong and fingerprint_corpus(shards, manifest.tokenizer["fingerprint"]) != manifest.fingerprint:
            wrong = "its fingerprint is not that of its shards: somebody edited it"
        names = [s.file for s in shards] + [str(p.relative_to(folder)) for p in (folder / "tokenizer").glob("**/*")]
        outside = [name for name in names if not (folder / name).resolve().is_relative_to(folder.resolve())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedManifest(f"{path} is damaged ({quote_error(error)}): prepare the corpus again") from error
    if wrong:
        raise DamagedManifest(f"{path} is damaged ({wrong}): prepare the corpus again")
    if outside:
        raise KinspanError(f"{path} names a file outside its folder: {outside[0]}")
    return manifest


def _find_impossible_count(shard: ShardInfo) -> str | None:
    """Say which count of a shard cannot be true; None where all can. Arrays are made as large as these counts say."""
    own = {name: getattr(shard, name) for name in MIN_BYTES}
    usable = [counts for splits in shard.usable.values() for counts in splits.values()]
    numbers = [shard.bytes, *own.values(), *(counts[name] for counts in usable for name in ("anchors", "documents"))]
    if any(type(number) is not int or number < 0 for number in numbers):
        return f"{shard.file}: a count is no whole number from 0"
    if shard.split not in ("", *SPLITS):
        return f"{shard.file}: {shard.split!r} is no split"
    for name, number in own.items():
        if number * MIN_BYTES[name] > shard.bytes:
            return f"{shard.file}: {number} {name} in {shard.bytes} bytes"
    most = max(shard.paragraphs, shard.documents)  # an anchor is a paragraph, or a question, which may have no body
    if any(c["anchors"] > most or c["documents"] > shard.documents for c in usable):
        return f"{shard.file}: more is usable than is there"
    return None


def _find_missing_field(manifest: Manifest) -> str | None:
    """Say which name or total, of those that are shown and compared, is missing or of a wrong type; None if none is."""
    tokenizer = manifest.tokenizer
    if not isinstance(tokenizer["name"], str) or not isinstance(tokenizer["fingerprint"], str):
        return "the tokenizer has no name or fingerprint"
    if type(tokenizer["vocab_size"]) is not int or not isinstance(manifest.fingerprint, str):
        return "there is no size of the vocabulary or no fingerprint"
    if any(not isinstance(source["name"], str) or type(source["documents"]) is not int for source in manifest.sources):
        return "a source has no name or no count of documents"
    if any(type(number) is not int for number in manifest.totals.values()):
        return "a total is no whole number"
    if not {"documents", "paragraphs", "tokens"} <= manifest.totals.keys():
        return "a total is missing"
    return None
