"""A prepared corpus on disk: token ids nested by document, paragraph and sentence, memory-mapped.

The folder holds ``manifest.json``, the tokenizer, and ``shards/00000.arrow ...`` in the Arrow IPC file format, with
one row per document. Arrow's nested offsets are the index: nothing is copied, and there is no second index file.

Format version 2 keeps the documents that are held out for validation in shards of their own, and may have columns
that a reader gives, see OPTIONAL_COLUMNS. Version 1 mixes the documents in all shards, and is still read.
"""

import os
import struct
import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import hash_file

from .manifest import MAX_MANIFEST_BYTES, SPLITS, DamagedManifest, Manifest, ShardInfo, read_manifest
from .manifest import fingerprint_corpus as fingerprint_corpus
from .remote.address import is_remote
from .remote.cache import CacheSettings
from .remote.mirror import Mirror, map_ahead
from .remote.store import BadAnswer
from .tokenizers import fingerprint_tokenizer, load_tokenizer
from .verification import verify_once

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
    viewed            of a view, see sampling/texts.py: the shard itself, which so stays mapped
    """

    rows: pa.RecordBatch
    tokens: np.ndarray
    sentence_starts: np.ndarray
    paragraph_starts: np.ndarray
    document_starts: np.ndarray
    held_out: np.ndarray
    viewed: "Shard | None" = None

    def document_id(self, row: int) -> str:
        return self.rows.column("id")[row].as_py()

    def document_title(self, row: int) -> str:
        return self.rows.column("title")[row].as_py()


class Corpus:
    """An opened corpus. Opening reads the manifest alone; a shard is mapped and checked at its first use.

    The folder may come from elsewhere: what its manifest says is checked against the files, and nothing outside the
    folder is read. See docs/releases.md.

    Args:
        place:  the output of ``kinspan prepare``: its folder, or the address of a remote copy
        verify: check each shard's SHA-256, offsets and token ids at its first use, unless this machine did so before;
                shards that are fetched are always checked
        cache:  where the shards of a remote corpus are kept

    Raises KinspanError where there is no corpus, its manifest is damaged, or its format is of another version.
    """

    def __init__(self, place: str | Path, verify: bool = True, cache: CacheSettings = CacheSettings()) -> None:  # noqa: B008
        self.place, self.cache = place, cache
        self.mirror: Mirror | None = None
        if is_remote(place):
            self.mirror = Mirror(str(place), cache, _read_answer, MAX_MANIFEST_BYTES)
            self.name, self.folder, manifest = self.mirror.store.name, self.mirror.folder, self.mirror.manifest
        else:
            self.name, self.folder = str(Path(place)), Path(place)
            manifest = read_manifest(self.folder, self.name)
        self.unverified = set(range(len(manifest.shards))) if verify else set()
        self.manifest: Manifest = manifest
        self.counted: dict[tuple, dict[str, dict[str, int]]] = {}  # usable paragraphs that the manifest does not know
        self._lock = threading.Lock()  # of the dictionary
        self._mapped: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()  # as long as in use

    @property
    def short_name(self) -> str:
        """The last part of the corpus's place."""
        return self.name.rpartition("/")[2] if self.mirror else self.folder.resolve().name

    @property
    def tokenizer_folder(self) -> str:
        """The folder of the tokenizer that the corpus was made with. Raises KinspanError where it is gone."""
        if self.mirror is None:
            if not (folder := self.folder / "tokenizer").is_dir():
                raise KinspanError(f"{folder} is missing: prepare the corpus again, or copy that folder again")
            return str(folder)
        return str(self.mirror.fetch_tokenizer(self._check_own_tokenizer))

    def _check_own_tokenizer(self, folder: Path) -> None:
        if fingerprint_tokenizer(load_tokenizer(str(folder))) != self.manifest.tokenizer["fingerprint"]:
            raise KinspanError(f"corpus {self.name}: its tokenizer is not the one that it was made with")

    def check_tokenizer(self, fingerprint: str, name: str) -> None:
        """Raise KinspanError where the fingerprint of a model's tokenizer is not that of the corpus."""
        mine = self.manifest.tokenizer
        if fingerprint != mine["fingerprint"]:
            raise KinspanError(
                f"corpus {self.name} was prepared with the tokenizer {mine['name']}, the model's is {name}: "
                f"their vocabularies or rules differ; run kinspan prepare with --tokenizer {name}"
            )

    def shards(self, numbers: Sequence[int]) -> list[Shard]:
        """The shards of these numbers; those of a remote corpus that are not here are fetched, a few at a time."""
        if self.mirror is None:
            return [self.shard(n) for n in numbers]
        held = [n for n in numbers if self.mirror.holds(self.manifest.shards[n].file)]
        found = {n: self.shard(n) for n in held}  # first, so that they do not leave for those that come
        missing = {n: self.manifest.shards[n].bytes for n in numbers if n not in found}
        found |= map_ahead(self.shard, missing, f"fetching {self.short_name}")
        return [found[n] for n in numbers]

    def shard(self, number: int) -> Shard:
        """The shard of this number, which is mapped as long as somebody uses it."""
        with self._lock:
            found = self._mapped.get(number)
        if found is None:
            found = self._open_shard(number)
            with self._lock:
                found = self._mapped.setdefault(number, found)
        return found

    def _open_shard(self, number: int) -> Shard:
        info = self.manifest.shards[number]
        if self.mirror is None:
            return self._map_checked(number, info)
        check, mark = partial(self._check_answer, info), partial(self._mark_verified, info)
        pinned = self.mirror.pin(info.file, info.bytes, check, mark)
        try:
            shard = self._map_checked(number, info)
        except KinspanError:  # it was damaged in the cache
            self.mirror.drop(info.file)
            os.close(pinned)
            pinned = self.mirror.pin(info.file, info.bytes, check, mark)
            shard = self._map_checked(number, info)
        weakref.finalize(shard, os.close, pinned)
        return shard

    def _map_checked(self, number: int, info: ShardInfo) -> Shard:
        path = self.folder / info.file
        if not path.is_file():
            raise KinspanError(f"{path} is missing: prepare the corpus again, or copy that file again")
        if path.stat().st_size != info.bytes:
            raise KinspanError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {info.bytes}: it was truncated or "
                "changed; prepare the corpus again, or copy that file again"
            )
        if number in self.unverified:
            verify_once(path, self._claim(info), lambda: self._verify(path, info))
            self.unverified.discard(number)
        shard = map_shard(path)
        self._refuse_mismatch(path, shard, info, thorough=False)
        return shard

    def _claim(self, info: ShardInfo) -> str:
        """What a mark says of a shard that was verified."""
        return f"{info.sha256} {self.manifest.tokenizer['vocab_size']}"

    def _verify(self, path: Path, info: ShardInfo) -> None:
        if hash_file(path) != info.sha256:
            raise KinspanError(
                f"{path} does not have the SHA-256 that the manifest says: the file is damaged; "
                "prepare the corpus again, or copy that file again"
            )
        self._refuse_mismatch(path, map_shard(path), info, thorough=True)

    def _check_answer(self, info: ShardInfo, path: Path) -> None:
        """Raise BadAnswer where what a store sent is not the shard, and KinspanError where the shard is bad there."""
        size = path.stat().st_size
        if size != info.bytes:
            raise BadAnswer(f"it sent {size:,} bytes, the manifest says {info.bytes:,}")
        if hash_file(path) != info.sha256:
            raise BadAnswer("what it sent does not have the SHA-256 that the manifest says")
        self._refuse_mismatch(path, map_shard(path), info, thorough=True)

    def _mark_verified(self, info: ShardInfo, path: Path) -> None:
        verify_once(path, self._claim(info), lambda: None)

    def _refuse_mismatch(self, path: Path, shard: Shard, info: ShardInfo, thorough: bool) -> None:
        wrong = _find_mismatch(shard, info, self.manifest.tokenizer["vocab_size"], thorough)
        if wrong:
            raise KinspanError(f"{path} is not what its manifest says ({wrong}): prepare the corpus again")


def _read_answer(folder: Path, name: str) -> Manifest:
    """Read a manifest that a store sent. Raises BadAnswer where it is damaged: it may come whole the next time."""
    try:
        return read_manifest(folder, name)
    except DamagedManifest as error:
        raise BadAnswer(str(error)) from error


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
    """Say what of a shard is not as its manifest says; ``thorough`` reads all of its offsets and ids too."""
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
