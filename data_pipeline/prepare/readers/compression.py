"""Opens files, compressed or not, on a disk or behind a URL."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa

from .reader import SourceFile

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_TARS = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"}
MIN_BOMB_BYTES = 1 << 30  # less does no harm, however small the compressed file is
MAX_RATIO = 250  # xz compresses text about 5-fold, and repetitive text 100-fold


class _Decompressing(Protocol):
    def read1(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


def is_url(name: str) -> bool:
    """Tells whether a name is a URL that fsspec opens, such as ``s3://bucket/key``."""
    return "://" in name


def is_compressed(name: str) -> bool:
    return Path(name).suffix.lower() in COMPRESSED_SUFFIXES


def open_file(name: str | Path) -> IO[bytes]:
    """Opens a local file, or a URL with fsspec."""
    if isinstance(name, str) and is_url(name):
        import fsspec

        opened = fsspec.open(name, "rb").open()  # its readline() takes no limit
        return io.BufferedReader(opened, 1 << 16)
    return open(name, "rb")


def open_decompressed(name: str | Path) -> IO[bytes]:
    """Opens a file for reading bytes, decompressed as its suffix says."""
    return open_source(SourceFile(str(name), lambda: open_file(name)))


def open_source(source: SourceFile) -> IO[bytes]:
    """Opens a source for reading bytes, decompressed as its suffix says."""
    file, suffix = source.open(), Path(source.name).suffix.lower()
    suffix = _TARS.get(suffix, suffix)
    if suffix not in COMPRESSED_SUFFIXES:
        return file
    inner: _Decompressing
    if suffix == ".gz":
        inner = gzip.GzipFile(fileobj=file)
    elif suffix == ".zst":
        inner = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    else:
        inner = _Streams(file, bz2.BZ2Decompressor if suffix == ".bz2" else lzma.LZMADecompressor)
    return io.BufferedReader(_Guarded(inner, file), 1 << 16)


class _Streams:
    """Decompresses the streams of a .bz2 or .xz file. Python's own classes take a damaged stream for the end."""

    def __init__(self, packed: IO[bytes], make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self.packed, self.make, self.stream = packed, make, make()

    def read1(self, size: int) -> bytes:
        while True:
            chunk = b""
            if self.stream.eof:
                chunk = self.stream.unused_data.lstrip(b"\0")  # an .xz file may be padded with zeros
                while not chunk:
                    if not (block := self.packed.read(1 << 16)):
                        return b""
                    chunk = block.lstrip(b"\0")
                self.stream = self.make()
            elif self.stream.needs_input and not (chunk := self.packed.read(1 << 16)):
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            if data := self.stream.decompress(chunk, size):
                return data

    def close(self) -> None:
        """Leaves ``packed`` open."""


class _Guarded(io.RawIOBase):
    """Limits how far a file may expand, so that a small one cannot take hours to read or fill the disk."""

    def __init__(self, inner: _Decompressing, packed: IO[bytes]) -> None:
        self.inner, self.packed, self.count = inner, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.inner.read1(len(buffer))  # not read(): bytes before a damaged place are returned
        buffer[: len(data)] = data
        self.count += len(data)
        check_ratio(self.count, self.packed.tell())
        return len(data)

    def close(self) -> None:
        self.inner.close()
        self.packed.close()
        super().close()


def check_ratio(unpacked: int, packed: int) -> None:
    """Raises OSError if a compressed file expands more than text can."""
    if unpacked > MIN_BOMB_BYTES and unpacked > MAX_RATIO * packed:
        raise OSError(f"it grows {unpacked // max(1, packed):,}-fold when it is decompressed, which no text does")
