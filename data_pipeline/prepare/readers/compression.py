"""Opening compressed files, by their suffix."""

import gzip
import io
import lzma
from pathlib import Path
from typing import IO

import pyarrow as pa

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst")


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading bytes; its suffix says whether, and how, they are decompressed."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))  # type: ignore[arg-type]
    return path.open("rb")
