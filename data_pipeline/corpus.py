"""A prepared corpus on disk: token ids nested by document, paragraph and sentence, memory-mapped.

The folder holds ``manifest.json``, the tokenizer, and ``shards/00000.arrow ...`` in the Arrow IPC file format, a
row a document.
Arrow's nested offsets are the index: nothing is copied and there is no second index file.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import KinspanError

FORMAT_VERSION = 1
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class ShardInfo:
    """What the manifest says of a shard.

    usable: objective -> split -> {"anchors": usable paragraphs, "documents": documents that have one}
    """

    file: str
    documents: int
    paragraphs: int
    sentences: int
    tokens: int
    usable: dict[str, dict[str, dict[str, int]]]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``, written last: a folder without it is no corpus.

    tokenizer: name, revision, fingerprint (see tokenizers.fingerprint), vocab_size
    rules:     the cleaning rules and the share of documents held out
    sources:   for each input: its name, licence and origin where known, and what was kept of it
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


def corpus_fingerprint(shards: list[ShardInfo], tokenizer_fingerprint: str) -> str:
    """Names the corpus by its content: the hashes of its shards and of its tokenizer."""
    parts = [tokenizer_fingerprint] + [s.sha256 for s in shards]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Shard:
    """The arrays of one shard, views of the mapped file.

    tokens            [num_tokens]          uint16 or int32
    sentence_starts   [num_sentences + 1]   into tokens
    paragraph_starts  [num_paragraphs + 1]  into sentences
    document_starts   [num_documents + 1]   into paragraphs
    held_out          [num_documents]       1 where the document is for validation
    """

    rows: pa.RecordBatch
    tokens: np.ndarray
    sentence_starts: np.ndarray
    paragraph_starts: np.ndarray
    document_starts: np.ndarray
    held_out: np.ndarray

    def document_id(self, row: int) -> str:
        return self.rows.column("id")[row].as_py()

    def document_title(self, row: int) -> str:
        return self.rows.column("title")[row].as_py()


class Corpus:
    """An opened corpus. Opening reads the manifest alone; a shard is mapped, and its hash checked, at first use.

    Args:
        folder: the output of ``launch/prepare.py``
        verify: check each shard's SHA-256 at first use. One process a node is asked to; the others do not wait for it.

    Raises KinspanError where there is no corpus, or its format is another version's.
    """

    def __init__(self, folder: str | Path, verify: bool = True) -> None:
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        self.unverified = set(range(len(manifest.shards))) if verify else set()
        self.manifest = manifest
        self.shard = lru_cache(maxsize=64)(self._open_shard)

    def check_tokenizer(self, fingerprint: str, name: str) -> None:
        """Refuse a model whose tokenizer is not the corpus's."""
        mine = self.manifest.tokenizer
        if fingerprint != mine["fingerprint"]:
            raise KinspanError(
                f"corpus {self.folder} was prepared with the tokenizer {mine['name']}, the model's is {name}: "
                f"their vocabularies or rules differ; run launch/prepare.py with --tokenizer {name}"
            )

    def _open_shard(self, number: int) -> Shard:
        info = self.manifest.shards[number]
        path = self.folder / info.file
        if not path.is_file():
            raise KinspanError(f"{path} is missing: prepare the corpus again, or copy that file again")
        if path.stat().st_size != info.bytes:
            raise KinspanError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {info.bytes}: it was truncated or "
                "changed; prepare the corpus again, or copy that file again"
            )
        if number in self.unverified and sha256_of(path) != info.sha256:
            raise KinspanError(
                f"{path} does not have the SHA-256 that the manifest says: the file is damaged; "
                "prepare the corpus again, or copy that file again"
            )
        self.unverified.discard(number)
        return map_shard(path)


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.is_file():
        raise KinspanError(f"no corpus at {folder} (it has no manifest.json): make one with launch/prepare.py")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format_version"] != FORMAT_VERSION:
            raise KinspanError(
                f"{path} is of format version {fields['format_version']}, this program reads {FORMAT_VERSION}: "
                "prepare the corpus again"
            )
        shards = [ShardInfo(**s) for s in fields.pop("shards")]
        manifest = Manifest(shards=shards, **fields)
        outside = [s.file for s in shards if not (folder / s.file).resolve().is_relative_to(folder.resolve())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KinspanError(f"{path} is damaged ({error}): prepare the corpus again") from error
    if outside:
        raise KinspanError(f"{path} names a shard outside its folder: {outside[0]}")
    return manifest


def map_shard(path: Path) -> Shard:
    """Map an Arrow shard and take its offsets and values as NumPy views, without a copy."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        rows = reader.get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise KinspanError(f"{path} is no readable Arrow file ({error}): prepare the corpus again") from error
    documents = rows.column("tokens")
    paragraphs = documents.values
    sentences = paragraphs.values
    held_out = rows.column("held_out").to_numpy(zero_copy_only=True)
    tokens = sentences.values.to_numpy(zero_copy_only=True)
    s, p, d = (x.offsets.to_numpy(zero_copy_only=True) for x in (sentences, paragraphs, documents))
    return Shard(rows, tokens, s, p, d, held_out)
