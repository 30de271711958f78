"""Finding the files of ``--input``."""

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from data_pipeline.errors import KinspanError

from . import PYTHON_DOCS
from . import find_input_files as find_paths
from .python_docs import find_source_files


@dataclass(frozen=True)
class InputFile:
    """A file to read, and what tells whether it has changed: its size in bytes, and the time of its last change."""

    name: str
    size: int
    modified: str


def find_input_files(inputs: list[str], allow_skipped: bool = False) -> tuple[list[InputFile], Counter[str]]:
    """Find the files of the inputs, and count what was skipped."""
    paths, skipped = find_paths(inputs, allow_skipped)
    files = []
    for path in paths:
        if str(path) == PYTHON_DOCS:
            stamps = "".join(f"{p}:{p.stat().st_size} " for p in find_source_files())
            files.append(InputFile(PYTHON_DOCS, 0, blake2b(stamps.encode()).hexdigest()[:16]))
            continue
        try:
            stat = path.stat()
        except OSError as error:
            raise KinspanError(f"--input {path} cannot be read: {error.strerror}") from error
        files.append(InputFile(str(path.resolve()), stat.st_size, str(stat.st_mtime_ns)))
    return files, skipped
