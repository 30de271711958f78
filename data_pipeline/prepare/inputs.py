"""Input files become tasks: parts of large files, and groups of small ones, by their sizes alone."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

from data_pipeline.prepare.document import Omitted
from data_pipeline.prepare.readers import FilePart, InputFile, Record, find_parts, read_records

from .spill import Buckets

MIN_GROUP, MAX_GROUP = 1 << 20, 1 << 26  # bytes of small files that are one task together
EXPANSION = 4  # about how many bytes of text one byte of a compressed file holds
PACKED = (".gz", ".bz2", ".xz", ".zst", ".7z", ".zip", ".parquet", ".docx", ".pdf")  # suffixes of such files
MIN_BUCKET, MAX_BUCKET = 1 << 25, 1 << 28  # bytes of text whose documents are shuffled in memory at a time
BYTES_PER_TOKEN = 4.5  # of text, about


class Piece(NamedTuple):
    """A file, or a part of it."""

    file: InputFile
    part: FilePart | None


@dataclass(frozen=True)
class InputTask:
    """What one task reads, in this order.

    key:  names its output: a hash of what is read, and of all that decides what becomes of it
    size: about how many bytes of text
    """

    key: str
    size: int
    pieces: list[Piece]

    def describe(self) -> str:
        first = self.pieces[0]
        part = f", part {first.part.begin}-{first.part.end}" if first.part else ""
        return f"{first.file.name}{part}" + (f" and {len(self.pieces) - 1} more" * (len(self.pieces) > 1))

    def read(self) -> Iterator[Record]:
        """Yield the records of all pieces. A file in which there is none comes as a record, too, which says so."""
        for piece in self.pieces:
            is_empty = True
            for record in read_records(piece.file.name, piece.part, piece.file.called):
                is_empty = False
                yield record
            if is_empty and (piece.part is None or not piece.part.begin):
                why = "a file in which there is no record" if piece.file.size else "an empty file"
                yield Record(piece.file.name, 1, Omitted(why, piece.file.size), piece.file.called)


def cut_tasks(files: list[InputFile], settings: str) -> list[InputTask]:
    """Cut the files into parts where their readers can, and join small ones, in their order.

    Which small files end a group is told by hashes of their names, about two in a full one, so that the groups before
    and after a file stay as they are when it is added.

    settings: whatever else decides what a task's output is
    """
    pieces: list[tuple[Piece, int]] = []
    for file in files:
        parts = find_parts(file.name, file.size)
        size = max(1, _estimate_text(file) // max(1, len(parts)))
        pieces += [(Piece(file, part), size) for part in parts]
    wanted = min(max(sum(size for _, size in pieces) // 1024, MIN_GROUP), MAX_GROUP)
    limit = 1 << (wanted.bit_length() - 1)  # a power of two: it stays as it is when the input grows a little
    groups: list[list[Piece]] = []
    sizes: list[int] = []
    is_full = True
    for piece, size in pieces:
        if not is_full and sizes[-1] + size <= limit:
            groups[-1].append(piece)
            sizes[-1] += size
        else:
            groups.append([piece])
            sizes.append(size)
        is_full = _hash_name(piece.file.name) * limit < 2 * size
    return [InputTask(_make_key(group, settings), size, group) for group, size in zip(groups, sizes, strict=True)]


def estimate_total(files: list[InputFile]) -> int:
    """Estimate how many bytes of text the files hold."""
    return sum(map(_estimate_text, files))


def _estimate_text(file: InputFile) -> int:
    return file.size * (EXPANSION if file.name.lower().endswith(PACKED) else 1)


def _hash_name(name: str) -> float:
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) / 2**32


def _make_key(pieces: list[Piece], settings: str) -> str:
    described = [(asdict(file), part and asdict(part)) for file, part in pieces]
    text = json.dumps([settings, described], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def count_buckets(total: int, shard_tokens: int, validation_share: float) -> Buckets:
    """Decide into how many buckets documents of either split go, by the size of the input alone.

    A bucket is shuffled in memory, and becomes a shard or a few.
    """
    bucket = max(min(max(total // 1024, MIN_BUCKET), MAX_BUCKET), int(shard_tokens * BYTES_PER_TOKEN))
    return Buckets(max(1, -(-total // bucket)), max(1, round(total * validation_share / bucket)))
