"""Opens files, compressed or not, on a disk or behind a URL."""

import bz2
import gzip
import importlib
import io
import lzma
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa

from data_pipeline.core.errors import quote_error, redact
from data_pipeline.sources import is_url

from .reader import Meter, SourceFile

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_TARS = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"}
File = IO[bytes] | io.RawIOBase | io.BufferedIOBase


def is_compressed(name: str) -> bool:
    return redact(name).lower().endswith(COMPRESSED_SUFFIXES)


def open_file(name: str | Path) -> IO[bytes]:
    """Opens a local file, or a URL with fsspec."""
    if isinstance(name, str) and is_url(name):
        import fsspec

        opened = fsspec.open(name, "rb").open()  # its readline() takes no limit
        return io.BufferedReader(opened, 1 << 16)
    return open(name, "rb")


def open_decompressed(name: str | Path) -> IO[bytes]:
    """Opens a file for reading bytes, decompressed as its suffix says."""
    meter = Meter()
    shown = redact(str(name))
    return open_source(SourceFile(shown, lambda: count_bytes(open_file(name), meter.count_read), meter=meter))


def open_source(source: SourceFile) -> IO[bytes]:
    """Opens a source for reading bytes, decompressed as its suffix says."""
    file, suffix = source.open(), Path(source.name).suffix.lower()
    suffix = _TARS.get(suffix, suffix)
    if suffix not in COMPRESSED_SUFFIXES:
        return file
    inner: File
    if suffix == ".gz":
        inner = gzip.GzipFile(fileobj=file)
    elif suffix == ".zst":
        make = _find_zstd()
        inner = _Streams(file, make) if make else pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    else:
        inner = _Streams(file, bz2.BZ2Decompressor if suffix == ".bz2" else lzma.LZMADecompressor)
    return count_bytes(inner, source.meter.count_unpacked, file)


def _find_zstd() -> Callable[[], bz2.BZ2Decompressor] | None:
    """Returns a maker of zstd's decompressors; None if it is not installed. Arrow's reads no windows above 128 MB."""
    try:
        zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        return None
    return partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: 31})  # 2 GB


class _Streams(io.RawIOBase):
    """Decompresses the streams of a .bz2, .xz or .zst file. Python's own classes take a damaged one for the end."""

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


def count_bytes(file: File, count: Callable[[int], None], *held: IO[bytes]) -> io.BufferedReader:
    """Returns a file whose bytes are counted as they are read; closing it also closes the files ``held``."""
    return io.BufferedReader(_Counted(file, count, held), 1 << 16)


class _Counted(io.RawIOBase):
    def __init__(self, inner: File, count: Callable[[int], None], held: tuple[File, ...]) -> None:
        self.inner, self.count, self.files = inner, count, (inner, *held)
        self.read_some = getattr(inner, "read1", None) or inner.read  # not read(): bytes before damage are returned

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.inner.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.inner.seek(offset, whence)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self.read_some(len(buffer))
        except (EOFError, MemoryError, OSError):
            raise
        except Exception as error:  # lzma, zlib, zstd and zipfile raise their own
            raise OSError(quote_error(error)) from error
        buffer[: len(data)] = data
        self.count(len(data))
        return len(data)

    def close(self) -> None:
        for file in self.files:
            file.close()
        super().close()
