"""A prepared corpus on disk: token ids nested by document, paragraph and sentence, memory-mapped.

The folder holds ``manifest.json``, the tokenizer, and ``shards/00000.arrow ...`` in the Arrow IPC file format, with
one row per document. Arrow's nested offsets are the index: nothing is copied, and there is no second index file.

Format version 2 keeps the documents that are held out for validation in shards of their own, and may have columns
that a reader gives, see OPTIONAL_COLUMNS. Version 1 mixes the documents in all shards, and is still read; its order
of examples is as it was.
"""

import hashlib
import json
import struct
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import KinspanError, quote_error
from .verification import verify_once

FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
SPLITS = ("train", "validation")
MAX_MANIFEST_BYTES = 1 << 27  # enough for a hundred thousand shards
MIN_BYTES = {"documents": 4, "paragraphs": 4, "sentences": 4, "tokens": 2}  # that one of them takes in a shard


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


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What a corpus has only where its reader gives it. A text is nested like a paragraph, so that it can be cut to spans.
# title_tokens  document, sentence, token: the title as a text
# answers       document, answer, sentence, token: the answers to the document's question
# accepted      the number of the accepted answer, -1 where there is none
# links         ids of the documents that this one refers to
OPTIONAL_COLUMNS = ("title_tokens", "answers", "accepted", "links")


def make_schema(wide: bool, optional: Collection[str] = ()) -> pa.Schema:
    """Name a shard's columns. ``wide`` is for a vocabulary that does not fit into 16 bits."""
    sentences = pa.list_(pa.list_(pa.int32() if wide else pa.uint16()))
    nested = pa.list_(sentences)
    text = [(name, pa.string()) for name in ("id", "title", "source")]
    types = dict(zip(OPTIONAL_COLUMNS, (sentences, nested, pa.int32(), pa.list_(pa.string())), strict=True))
    more = [(name, types[name]) for name in OPTIONAL_COLUMNS if name in optional]
    return pa.schema([*text, ("held_out", pa.uint8()), *more, ("tokens", nested)])


@dataclass(frozen=True)
class Shard:
    """The arrays of one shard, which are views of the mapped file.

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
    """An opened corpus. Opening reads the manifest alone; a shard is mapped and checked at its first use.

    The folder may come from elsewhere: what its manifest says is checked against the files, and nothing outside the
    folder is read. See docs/security.md.

    Args:
        folder: the output of ``launch/prepare.py``
        verify: check each shard's SHA-256, offsets and token ids at its first use, unless this machine did so before

    Raises KinspanError where there is no corpus, its manifest is damaged, or its format is of another version.
    """

    def __init__(self, folder: str | Path, verify: bool = True) -> None:
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        self.unverified = set(range(len(manifest.shards))) if verify else set()
        self.manifest = manifest
        self.counted: dict[tuple, dict[str, dict[str, int]]] = {}  # usable paragraphs that the manifest does not know
        self.shard = lru_cache(maxsize=64)(self._open_shard)

    def check_tokenizer(self, fingerprint: str, name: str) -> None:
        """Raise KinspanError where the fingerprint of a model's tokenizer is not that of the corpus."""
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
        if number in self.unverified:
            claim = f"{info.sha256} {self.manifest.tokenizer['vocab_size']}"
            verify_once(path, claim, lambda: self._verify(path, info))
            self.unverified.discard(number)
        shard = map_shard(path)
        self._refuse_mismatch(path, shard, info, thorough=False)
        return shard

    def _verify(self, path: Path, info: ShardInfo) -> None:
        """Read all of a shard, and raise KinspanError where it is not what the manifest says."""
        if hash_file(path) != info.sha256:
            raise KinspanError(
                f"{path} does not have the SHA-256 that the manifest says: the file is damaged; "
                "prepare the corpus again, or copy that file again"
            )
        self._refuse_mismatch(path, map_shard(path), info, thorough=True)

    def _refuse_mismatch(self, path: Path, shard: Shard, info: ShardInfo, thorough: bool) -> None:
        wrong = _find_mismatch(shard, info, self.manifest.tokenizer["vocab_size"], thorough)
        if wrong:
            raise KinspanError(f"{path} is not what its manifest says ({wrong}): prepare the corpus again")


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.is_file():
        raise KinspanError(f"no corpus at {folder} (it has no manifest.json): make one with launch/prepare.py")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise KinspanError(f"{path} is damaged (larger than any corpus makes it): prepare the corpus again")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
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
        raise KinspanError(f"{path} is damaged ({quote_error(error)}): prepare the corpus again") from error
    if wrong:
        raise KinspanError(f"{path} is damaged ({wrong}): prepare the corpus again")
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
    if any(c["anchors"] > shard.paragraphs or c["documents"] > shard.documents for c in usable):
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


def map_shard(path: Path) -> Shard:
    """Map an Arrow shard into memory and take its offsets and values as NumPy views, without a copy.

    The record batch is read behind the schema, where it is checked, and not by the file's footer, which could name
    another place. Raises KinspanError where the file is no shard.
    """
    try:
        source = pa.memory_map(str(path))
        source.seek(8)  # the messages follow the format's magic bytes
        messages = pa.ipc.MessageReader.open_stream(source)
        columns = pa.ipc.read_schema(messages.read_next_message())
        if all(columns != make_schema(wide, columns.names) for wide in (False, True)):
            raise pa.ArrowInvalid("its columns are not those of a shard")
        message = messages.read_next_message()
        _refuse_compression(message, columns)
        rows = pa.ipc.read_record_batch(message, columns)
    except (pa.ArrowException, OSError, KeyError, IndexError, StopIteration) as error:
        raise KinspanError(
            f"{path} is no readable Arrow file ({quote_error(error)}): prepare the corpus again"
        ) from error
    documents = rows.column("tokens")
    paragraphs = documents.values
    sentences = paragraphs.values
    held_out = rows.column("held_out").to_numpy(zero_copy_only=True)
    tokens = sentences.values.to_numpy(zero_copy_only=True)
    s, p, d = (x.offsets.to_numpy(zero_copy_only=True) for x in (sentences, paragraphs, documents))
    return Shard(rows, tokens, s, p, d, held_out)


def _refuse_compression(message: pa.ipc.Message, columns: pa.Schema) -> None:
    """Raise ArrowInvalid where the buffers of a record batch are compressed: a small file could fill the memory.

    Arrow does not tell whether they are, and a reader cannot be given a limit. But Arrow decompresses a batch while it
    reads it, and takes buffers that are not compressed as they are: so the batch is first read with zeros in the place
    of its content, in which every decompressor fails.
    """
    header = message.metadata.to_pybytes()
    blank = np.zeros(8 + len(header) + message.body.size, dtype=np.uint8)  # zero pages, which take no memory
    blank[: 8 + len(header)] = np.frombuffer(struct.pack("<ii", -1, len(header)) + header, dtype=np.uint8)
    try:
        pa.ipc.read_record_batch(pa.py_buffer(blank), columns)
    except (pa.ArrowException, OSError) as error:
        raise pa.ArrowInvalid("it is compressed, which no shard is, or damaged") from error


def _find_mismatch(shard: Shard, info: ShardInfo, vocab_size: int, thorough: bool) -> str | None:
    """Say what of a shard is not as its manifest says; None where everything is.

    thorough: read all of the shard, to find offsets that lead outside the file and ids outside the vocabulary
    """
    found = {
        "documents": len(shard.document_starts) - 1,
        "paragraphs": len(shard.paragraph_starts) - 1,
        "sentences": len(shard.sentence_starts) - 1,
        "tokens": len(shard.tokens),
    }
    for name, number in found.items():
        if number != getattr(info, name):
            return f"{number} {name}, not {getattr(info, name)}"
    if info.split and (shard.held_out != SPLITS.index(info.split)).any():
        return f"documents that are not of the split {info.split}"
    try:
        shard.rows.validate(full=thorough)
    except pa.ArrowException as error:
        return quote_error(error)
    if thorough and any(_leave_vocabulary(tokens, vocab_size) for tokens in _list_tokens(shard)):
        return f"ids that are not below the vocabulary's {vocab_size}"
    return None


def _list_tokens(shard: Shard) -> list[np.ndarray]:
    """List the flat token ids of all columns that hold some."""
    found = [shard.tokens]
    for name, depth in (("title_tokens", 2), ("answers", 3)):
        if name in shard.rows.schema.names:
            column = shard.rows.column(name)
            for _ in range(depth):
                column = column.values
            found.append(column.to_numpy(zero_copy_only=True))
    return found


def _leave_vocabulary(tokens: np.ndarray, vocab_size: int) -> bool:
    return len(tokens) > 0 and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size
