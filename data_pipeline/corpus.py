"""Opens a prepared corpus: token ids nested by document, paragraph and sentence, memory-mapped.

The folder holds ``manifest.json``, the tokenizer, and ``shards/00000.arrow ...`` in the Arrow IPC file format, with
one row per document, held-out documents in separate shards. Arrow's nested offsets are the index: nothing is copied.
"""

import os
import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import DamagedFile, KinspanError, quote_error
from data_pipeline.core.files import hash_file, verify_once
from data_pipeline.core.settings import CacheSettings

from .manifest import SPLITS as SPLITS
from .manifest import Manifest as Manifest
from .manifest import ShardInfo, read_manifest
from .manifest import fingerprint_corpus as fingerprint_corpus
from .remote.mirror import Mirror, fetch_all
from .sources import is_url
from .tokenizers import fingerprint_tokenizer, load_tokenizer

REPAIR = "prepare the corpus again, or copy that file again"
# Columns that only some readers give. Texts are nested like paragraphs, so that spans can be cut from them.
# title_tokens  document, sentence, token: the title as a text
# answers       document, answer, sentence, token: the answers to the document's question
# accepted      the index of the accepted answer in ``answers``, -1 for none
# links         ids of the documents that this one refers to
OPTIONAL_COLUMNS = ("title_tokens", "answers", "accepted", "links")


def make_schema(wide: bool, optional: Collection[str] = ()) -> pa.Schema:
    """Returns a shard's columns. ``wide`` is for a vocabulary that does not fit into 16 bits."""
    sentences = pa.list_(pa.list_(pa.int32() if wide else pa.uint16()))
    nested = pa.list_(sentences)
    text = [(name, pa.string()) for name in ("id", "title", "source")]
    types = dict(zip(OPTIONAL_COLUMNS, (sentences, nested, pa.int32(), pa.list_(pa.string())), strict=True))
    more = [(name, types[name]) for name in OPTIONAL_COLUMNS if name in optional]
    return pa.schema([*text, ("held_out", pa.uint8()), *more, ("tokens", nested)])


@dataclass(frozen=True)
class Shard:
    """Holds the arrays of one shard, which are views of the mapped file.

    tokens            [num_tokens]          uint16 or int32
    sentence_starts   [num_sentences + 1]   into tokens
    paragraph_starts  [num_paragraphs + 1]  into sentences
    document_starts   [num_documents + 1]   into paragraphs
    held_out          [num_documents]       1 where the document is for validation
    viewed            for a view (see sampling/texts.py): the shard it refers to, kept so that its mapping stays open
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


class Corpus:
    """Gives the shards of a corpus. Opening reads the manifest alone; a shard is mapped and checked at its first use.

    Reads nothing outside the folder, since a corpus may come from a stranger. See docs/releases.md.

    Args:
        path:   the output of ``kinspan prepare``: its folder, or the address of a remote copy
        verify: check each shard's SHA-256 and Arrow's structure at its first use, unless this machine did so before;
                shards that are fetched are always checked
        cache:  where the shards of a remote corpus are kept
    """

    def __init__(self, path: str | Path, verify: bool = True, cache: CacheSettings = CacheSettings()) -> None:  # noqa: B008
        self.mirror: Mirror | None = None
        if is_url(path):
            self.mirror = Mirror(str(path), cache)
            self.name, self.folder, self.manifest = self.mirror.store.name, self.mirror.folder, self.mirror.manifest
        else:
            self.name, self.folder = str(Path(path)), Path(path)
            self.manifest = read_manifest(self.folder, self.name)
        self.unverified = set(range(len(self.manifest.shards))) if verify else set()
        self.usable_counts: dict[tuple, dict[str, dict[str, int]]] = {}  # for objectives that the manifest lacks
        self._lock = threading.Lock()  # guards _mapped
        self._mapped: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()  # shards in use

    @property
    def tokenizer_folder(self) -> str:
        """Returns the folder of the corpus's tokenizer. Raises KinspanError if it is missing."""
        if self.mirror is None:
            if not (folder := self.folder / "tokenizer").is_dir():
                raise KinspanError(f"{folder} is missing: prepare the corpus again, or copy that folder again")
            return str(folder)
        return str(self.mirror.fetch_tokenizer(self._check_tokenizer_files))

    def _check_tokenizer_files(self, folder: Path) -> None:
        if fingerprint_tokenizer(load_tokenizer(str(folder))) != self.manifest.tokenizer["fingerprint"]:
            raise KinspanError(f"corpus {self.name}: its tokenizer is not the one that it was made with")

    def shards(self, numbers: Sequence[int]) -> list[Shard]:
        """Returns the shards with these numbers, which a remote corpus fetches unless they are cached."""
        if self.mirror is None:
            return [self.shard(n) for n in numbers]
        sizes = {n: self.manifest.shards[n].bytes for n in numbers}
        # cached ones come first, so that they are not evicted for the others
        ordered = sorted(sizes, key=lambda n: not (self.folder / self.manifest.shards[n].file).is_file())
        shards = fetch_all(self.shard, {n: sizes[n] for n in ordered}, f"fetching {self.name.rpartition('/')[2]}")
        return [shards[n] for n in numbers]

    def shard(self, number: int) -> Shard:
        """Returns the shard with this number, which stays mapped while it is in use."""
        with self._lock:
            shard = self._mapped.get(number)
        if shard is None:
            shard = self._open_shard(number)
            with self._lock:
                shard = self._mapped.setdefault(number, shard)
        return shard

    def _open_shard(self, number: int) -> Shard:
        info = self.manifest.shards[number]
        if self.mirror is None:
            return self._verify_and_map(number, info)
        pinned = self._pin(self.mirror, info)
        try:
            shard = self._verify_and_map(number, info)
        except DamagedFile:  # the cached copy is damaged: fetch it again
            (self.folder / info.file).unlink(missing_ok=True)  # another process may have been first
            os.close(pinned)
            pinned = self._pin(self.mirror, info)
            shard = self._verify_and_map(number, info)
        weakref.finalize(shard, os.close, pinned)
        return shard

    def _pin(self, mirror: Mirror, info: ShardInfo) -> int:
        def fetch(part: Path) -> None:
            mirror.store.fetch(info.file, part, lambda part: verify_shard(part, info))

        path = self.folder / info.file
        pinned, was_fetched = mirror.cache.pin(path, info.bytes, fetch)
        if was_fetched:
            verify_once(path, info.sha256, lambda: None)
        return pinned

    def _verify_and_map(self, number: int, info: ShardInfo) -> Shard:
        path = self.folder / info.file
        _check_size(path, info)
        if number in self.unverified:
            verify_once(path, info.sha256, lambda: verify_shard(path, info))
            self.unverified.discard(number)
        return map_shard(path)


def _check_size(path: Path, info: ShardInfo) -> None:
    if not path.is_file():
        raise DamagedFile(f"{path} is missing: {REPAIR}")
    if path.stat().st_size != info.bytes:
        raise DamagedFile(f"{path} has {path.stat().st_size} bytes, not the manifest's {info.bytes}: {REPAIR}")


def verify_shard(path: Path, info: ShardInfo) -> None:
    """Raises DamagedFile if a file does not have the content that the manifest states."""
    _check_size(path, info)
    if hash_file(path) != info.sha256:
        raise DamagedFile(f"{path} does not have the manifest's SHA-256: {REPAIR}")
    try:
        map_shard(path).rows.validate(full=True)
    except pa.ArrowException as error:
        raise DamagedFile(f"{path} is damaged ({quote_error(error)}): prepare the corpus again") from error


def map_shard(path: Path) -> Shard:
    """Maps an Arrow shard into memory and takes its offsets and values as NumPy views, without a copy."""
    try:
        rows = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the system's, such as too many open files
            raise KinspanError(f"{path} cannot be read: {quote_error(error)}") from error
        raise DamagedFile(f"{path} is not a readable Arrow file ({quote_error(error)}): {REPAIR}") from error
    if all(rows.schema != make_schema(wide, rows.schema.names) for wide in (False, True)):
        raise DamagedFile(f"{path} does not have a shard's columns: prepare the corpus again")
    documents = rows.column("tokens")
    paragraphs = documents.values
    sentences = paragraphs.values
    held_out = rows.column("held_out").to_numpy(zero_copy_only=True)
    tokens = sentences.values.to_numpy(zero_copy_only=True)
    s, p, d = (x.offsets.to_numpy(zero_copy_only=True) for x in (sentences, paragraphs, documents))
    return Shard(rows, tokens, s, p, d, held_out)
