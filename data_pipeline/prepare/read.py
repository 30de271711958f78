"""Reads documents, and counts rejected input, with one rule, ``--max_rejected``, for all commands.

Rejected are broken records, files of no known format, and the rest of a file that cannot be read, whose bytes are
estimated from the size of the file.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress

from .document import Document, Omitted, Rejected, Unreadable
from .readers.files import InputFiles, find_input_files
from .readers.reader import Record, measure_content
from .readers.registry import parse_record, read_records

logger = logging.getLogger(__name__)

MAX_REJECTED = 0.01  # of the bytes that are read
MAX_REJECTED_HELP = (
    "Share of the input's bytes that may be rejected: broken records, files that cannot be read to their end, files of "
    "no known format."
)
MAX_REJECTED_WITHOUT_FLAG = 0.5  # of the bytes, in commands that do not have --max_rejected
MAX_FILES = 1000  # whose losses are counted one by one: a broken archive may have millions

Made = TypeVar("Made")
Parse = Callable[[Record], list[Document]]


@dataclass
class ReadTally:
    """Counts records and bytes, and the losses of files with their first reasons; ``unread``: try again."""

    records: int = 0
    bytes: int = 0
    rejected: int = 0
    rejected_bytes: int = 0
    losses: dict[str, tuple[int, str]] = field(default_factory=dict)
    unread: bool = False

    def count(self, size: int) -> None:
        self.records += 1
        self.bytes += size

    def reject(self, file: str, size: int, reason: str) -> None:
        """Counts a rejected record of a file; its size is at least 1, so that it shows."""
        self.count(max(1, size))
        self.rejected += 1
        self.rejected_bytes += max(1, size)
        self._add_losses({file: (max(1, size), reason)})

    def reject_unknown(self, files: InputFiles) -> None:
        """Counts the files that no reader knows."""
        for file, reason in files.unknown:
            self.reject(file.name, file.size, reason)

    def add(self, more: "ReadTally") -> None:
        for name in ("records", "bytes", "rejected", "rejected_bytes"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.unread |= more.unread
        self._add_losses(more.losses)

    def _add_losses(self, losses: dict[str, tuple[int, str]]) -> None:
        for name, (size, reason) in losses.items():
            before, first = self.losses.get(name, (0, reason))
            self.losses[name] = before + size, first
        if len(self.losses) > 2 * MAX_FILES:
            self.losses = dict(sorted(self.losses.items(), key=lambda item: -item[1][0])[:MAX_FILES])


def refuse_rejected(read: ReadTally, max_rejected: float) -> None:
    """Raises KinspanError, which names the largest loss, where too large a share was rejected."""
    share = read.rejected_bytes / max(1, read.bytes)
    if share > max_rejected:
        name, (_, reason) = max(read.losses.items(), key=lambda item: item[1][0])
        raise KinspanError(f"--max_rejected {max_rejected:g}: {share:.2%} of the input is rejected; {name}: {reason}")


def parse_counted(record: Record, read: ReadTally, parse: Parse = parse_record) -> list[Document] | Rejected:
    """Parses a record to documents, or returns the reason why there are none; ``read`` counts it."""
    size = measure_content(record.content)
    try:
        documents = parse(record)
    except Omitted as reason:
        read.count(size)
        return reason
    except Rejected as reason:
        read.reject(record.file, size, f"record {record.line}: {reason}")
        read.unread |= isinstance(reason, Unreadable)
        return reason
    read.count(size)
    return documents


def read_input(
    inputs: list[str], parse: Parse, make: Callable[[Document], list[Made]], max_rejected: float = MAX_REJECTED
) -> list[Made]:
    """Reads an input in this process, where no corpus is needed: applies ``make`` to all documents that ``parse``
    returns. Raises KinspanError where too much is rejected."""
    files = find_input_files(inputs)
    made: list[Made] = []
    omitted, read = Counter[str](), ReadTally()
    read.reject_unknown(files)
    for file in files.files:
        for record in show_progress("reading", "records", read_records(file.name, None, file.called, file.size)):
            parsed = parse_counted(record, read, parse)
            if isinstance(parsed, Omitted):
                omitted[str(parsed)] += 1
            elif not isinstance(parsed, Rejected):
                made += [item for document in parsed for item in make(document)]
    refuse_rejected(read, max_rejected)
    if read.rejected:
        name, (_, reason) = next(iter(read.losses.items()))
        logger.info(f"rejected {read.rejected:,} records ({read.rejected_bytes:,} bytes); {name}: {reason}")
    for reason, count in omitted.items():
        logger.info(f"omitted {count:,} records: {reason}")
    return made
