"""``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT``: a data set of the Hugging Face hub, streamed.

NAME may be a local folder that ``datasets`` loads. A folder of ``save_to_disk`` needs no prefix: its Arrow files are
read like any others.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .reader import FilePart, Reader, SourceFile
from .tables import COLUMNS, parse_row

PREFIX = "hf"


def _read_stream(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict]]:
    from datasets import load_dataset

    name, config, split = [*source.name.partition(":")[2].split(":"), "", ""][:3]
    rows = load_dataset(name, config or None, split=split or "train", streaming=True)
    for number, row in enumerate(rows, 1):
        yield number, {key: row[key] for key in COLUMNS if key in row}


def stamp(name: str) -> str:
    """Say what tells whether a local folder has changed; "" for a data set of the hub."""
    files = sorted(path for path in Path(name.partition(":")[0]).rglob("*") if path.is_file())
    states = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return hashlib.sha256(repr(states).encode("utf-8", "surrogateescape")).hexdigest()[:16] if files else ""


READER = Reader(_read_stream, parse_row)
