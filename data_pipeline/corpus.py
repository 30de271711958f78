"""A prepared corpus on disk: token ids nested by document, paragraph and sentence, memory-mapped.

The folder holds ``manifest.json``, the tokenizer, and ``shards/00000.arrow ...`` in the Arrow IPC file format, a
row a document.
Arrow's nested offsets are the index: nothing is copied and there is no second index file.
"""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import KinspanError, one_line

FORMAT_VERSION = 1
SPLITS = ("train", "validation")
MOST_MANIFEST_BYTES = 1 << 27  # of a hundred thousand shards
BYTES_OF_ONE = {"documents": 4, "paragraphs": 4, "sentences": 4, "tokens": 2}  # at least, in a shard


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


def schema(wide: bool) -> pa.Schema:
    """A shard's columns; ``wide`` where the vocabulary does not fit into 16 bits."""
    tokens = pa.list_(pa.list_(pa.list_(pa.int32() if wide else pa.uint16())))
    text = [(name, pa.string()) for name in ("id", "title", "source")]
    return pa.schema([*text, ("held_out", pa.uint8()), ("tokens", tokens)])


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
    """An opened corpus. Opening reads the manifest alone; a shard is mapped, and its content checked, at first use.

    The folder may be from elsewhere: what its manifest says is believed only as far as the files bear it out, and
    nothing outside the folder is read. See docs/security.md.

    Args:
        folder: the output of ``launch/prepare.py``
        verify: check each shard's SHA-256, offsets and ids at first use, as every rank that trains does

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
        shard = map_shard(path)
        wrong = _wrong(shard, info, self.manifest.tokenizer["vocab_size"], thorough=number in self.unverified)
        if wrong:
            raise KinspanError(f"{path} is not what its manifest says ({wrong}): prepare the corpus again")
        self.unverified.discard(number)
        return shard


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.is_file():
        raise KinspanError(f"no corpus at {folder} (it has no manifest.json): make one with launch/prepare.py")
    if path.stat().st_size > MOST_MANIFEST_BYTES:
        raise KinspanError(f"{path} is damaged (larger than any corpus makes it): prepare the corpus again")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format_version"] != FORMAT_VERSION:
            raise KinspanError(
                f"{path} is of format version {fields['format_version']}, this program reads {FORMAT_VERSION}: "
                "prepare the corpus again"
            )
        shards = [ShardInfo(**s) for s in fields.pop("shards")]
        manifest = Manifest(shards=shards, **fields)
        wrong = next(filter(None, map(_impossible, shards)), None) or _unnamed(manifest)
        names = [s.file for s in shards] + [str(p.relative_to(folder)) for p in (folder / "tokenizer").glob("**/*")]
        outside = [name for name in names if not (folder / name).resolve().is_relative_to(folder.resolve())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KinspanError(f"{path} is damaged ({one_line(error)}): prepare the corpus again") from error
    if wrong:
        raise KinspanError(f"{path} is damaged ({wrong}): prepare the corpus again")
    if outside:
        raise KinspanError(f"{path} names a file outside its folder: {outside[0]}")
    return manifest


def _impossible(shard: ShardInfo) -> str | None:
    """What cannot be true of a shard; None where all can. Arrays are made as large as these numbers say."""
    own = {name: getattr(shard, name) for name in BYTES_OF_ONE}
    usable = [counts for splits in shard.usable.values() for counts in splits.values()]
    numbers = [shard.bytes, *own.values(), *(counts[name] for counts in usable for name in ("anchors", "documents"))]
    if any(type(number) is not int or number < 0 for number in numbers):
        return f"{shard.file}: a count is no whole number from 0"
    for name, number in own.items():
        if number * BYTES_OF_ONE[name] > shard.bytes:
            return f"{shard.file}: {number} {name} in {shard.bytes} bytes"
    if any(c["anchors"] > shard.paragraphs or c["documents"] > shard.documents for c in usable):
        return f"{shard.file}: more is usable than is there"
    return None


def _unnamed(manifest: Manifest) -> str | None:
    """What of the names and totals, which are shown and compared, is of another type; None where nothing is."""
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
    """Map an Arrow shard and take its offsets and values as NumPy views, without a copy."""
    try:
        source = pa.memory_map(str(path))
        if _is_compressed(source):  # a small file could unfold to all of the memory
            raise pa.ArrowInvalid("it is compressed, which no shard is")
        source.seek(0)
        rows = pa.ipc.open_file(source).get_batch(0)
        if rows.schema not in (schema(wide=False), schema(wide=True)):
            raise pa.ArrowInvalid("its columns are not those of a shard")
    except (pa.ArrowException, OSError, KeyError, IndexError, struct.error) as error:
        raise KinspanError(f"{path} is no readable Arrow file ({one_line(error)}): prepare the corpus again") from error
    documents = rows.column("tokens")
    paragraphs = documents.values
    sentences = paragraphs.values
    held_out = rows.column("held_out").to_numpy(zero_copy_only=True)
    tokens = sentences.values.to_numpy(zero_copy_only=True)
    s, p, d = (x.offsets.to_numpy(zero_copy_only=True) for x in (sentences, paragraphs, documents))
    return Shard(rows, tokens, s, p, d, held_out)


def _is_compressed(source: pa.NativeFile) -> bool:
    """Whether the buffers of an Arrow file's first record batch are compressed, by its header alone.

    pyarrow does not tell before it has unfolded them. The header is a table of flatbuffers: Message's field 2 is the
    RecordBatch, whose field 3 is there where its buffers are compressed.
    """
    source.seek(8)  # behind the file's own mark the messages follow, the schema first
    messages = pa.ipc.MessageReader.open_stream(source)
    messages.read_next_message()
    table = messages.read_next_message().metadata.to_pybytes()
    message = struct.unpack_from("<I", table)[0]
    place = message + _field(table, message, 2)
    batch = place + struct.unpack_from("<I", table, place)[0]
    return _field(table, batch, 3) != 0


def _field(table: bytes, at: int, number: int) -> int:
    """How far behind ``at`` a field of flatbuffers' table lies; 0 where it is not there."""
    names = at - struct.unpack_from("<i", table, at)[0]
    size = struct.unpack_from("<H", table, names)[0]
    return struct.unpack_from("<H", table, names + 4 + 2 * number)[0] if 4 + 2 * number < size else 0


def _wrong(shard: Shard, info: ShardInfo, vocab_size: int, thorough: bool) -> str | None:
    """What of a shard is not as its manifest says; None where all is.

    thorough: read all of it: offsets that lead outside the file, ids that no tokenizer of this vocabulary gives
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
    try:
        shard.rows.validate(full=thorough)
    except pa.ArrowException as error:
        return one_line(error)
    if thorough and len(shard.tokens) and not 0 <= int(shard.tokens.min()) <= int(shard.tokens.max()) < vocab_size:
        return f"ids that are not below the vocabulary's {vocab_size}"
    return None
