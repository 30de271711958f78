"""Reads documents, and counts rejected input, which the rule ``--max_rejected`` limits for all commands."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from data_pipeline.core.errors import KinspanError, redact
from data_pipeline.core.progress import show_progress
from data_pipeline.matching import fold_characters

from .document import Document, Omitted, Rejected, Unreadable
from .readers.files import InputFiles, find_input_files
from .readers.reader import Record, measure_content
from .readers.registry import parse_record, read_records

logger = logging.getLogger(__name__)

MAX_REJECTED = 0.01  # share of the input's bytes
MAX_REJECTED_HELP = (
    "Share of the input's bytes that may be rejected: broken records, files that cannot be read to their end, files of "
    "no known format."
)
MAX_REJECTED_WITHOUT_FLAG = 0.5  # the same, in commands without --max_rejected
MAX_FILES = 1000  # files with the largest losses that are remembered: a broken archive may have millions

Made = TypeVar("Made")
Parse = Callable[[Record], list[Document]]


@dataclass
class ReadTally:
    """Counts records, bytes, and rejected bytes by file, with the first reason; ``unread``: a new try may read more."""

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
        """Counts a rejected record; an empty one counts as one byte, so that the share is not 0."""
        self.count(max(1, size))
        self.rejected += 1
        self.rejected_bytes += max(1, size)
        self._add_losses({redact(file): (max(1, size), reason)})

    def reject_unreadable(self, files: InputFiles) -> None:
        """Counts the files that cannot be read as rejected."""
        for file, reason in files.unreadable:
            self.reject(file.name, file.size, reason)

    def add(self, more: "ReadTally") -> None:
        for name in ("records", "bytes", "rejected", "rejected_bytes"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.unread |= more.unread
        self._add_losses(more.losses)

    def _add_losses(self, losses: dict[str, tuple[int, str]]) -> None:
        for name, (size, reason) in losses.items():
            total, first_reason = self.losses.get(name, (0, reason))
            self.losses[name] = total + size, first_reason
        if len(self.losses) > 2 * MAX_FILES:
            self.losses = dict(sorted(self.losses.items(), key=lambda item: -item[1][0])[:MAX_FILES])


def refuse_rejected(tally: ReadTally, max_rejected: float) -> None:
    """Raises KinspanError, which names the largest loss, if too large a share of the input was rejected."""
    share = tally.rejected_bytes / max(1, tally.bytes)
    if share > max_rejected:
        name, (_, reason) = max(tally.losses.items(), key=lambda item: item[1][0])
        raise KinspanError(f"--max_rejected {max_rejected:g}: {share:.2%} of the input is rejected; {name}: {reason}")


def parse_counted(record: Record, tally: ReadTally, parse: Parse = parse_record) -> list[Document] | Rejected:
    """Parses a record, and counts it in ``tally``. Returns its documents, or the reason why it has none."""
    size = measure_content(record.content)
    try:
        documents = parse(record)
    except Omitted as reason:
        tally.count(size)
        return reason
    except Rejected as reason:
        tally.reject(record.file, size, f"record {record.line}: {reason}")
        tally.unread |= isinstance(reason, Unreadable)
        return reason
    tally.count(size)
    return [replace(d, title=fold_characters(d.title), answers=[*map(fold_characters, d.answers)]) for d in documents]


def read_input(
    inputs: list[str], parse: Parse, make: Callable[[Document], list[Made]], max_rejected: float = MAX_REJECTED
) -> list[Made]:
    """Reads an input without making a corpus; returns what ``make`` makes of the documents that ``parse`` returns.
    Raises KinspanError if too much is rejected."""
    files = find_input_files(inputs)
    made: list[Made] = []
    omitted, tally = Counter[str](), ReadTally()
    tally.reject_unreadable(files)
    records = (r for file in files.files for r in read_records(file.name, None, file.called, file.size))
    for record in show_progress("reading", "records", records):
        parsed = parse_counted(record, tally, parse)
        if isinstance(parsed, Omitted):
            omitted[str(parsed)] += 1
        elif not isinstance(parsed, Rejected):
            made += [item for document in parsed for item in make(document)]
    refuse_rejected(tally, max_rejected)
    if tally.rejected:
        name, (_, reason) = next(iter(tally.losses.items()))
        logger.info(f"rejected {tally.rejected:,} records ({tally.rejected_bytes:,} bytes); {name}: {reason}")
    for reason, count in omitted.items():
        logger.info(f"omitted {count:,} records: {reason}")
    return made
