"""Counts records as they are parsed, and reads an input in this process, for what needs its texts and no corpus."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress

from .document import Document, Omitted, Rejected, Skipped, Unreadable
from .readers.files import find_input_files, format_skipped
from .readers.reader import Record, measure_content
from .readers.registry import parse_record, read_records
from .rejection import ReadTally, format_bytes, refuse_rejected

Made = TypeVar("Made")
Parse = Callable[[Record], list[Document]]


def parse_counted(record: Record, size: int, read: ReadTally, parse: Parse = parse_record) -> list[Document] | Rejected:
    """The documents of a record of ``size`` bytes, or why there are none.

    ``read`` counts it. What could not be read to its end, or is of no known format, has flags of its own, and is not
    counted.
    """
    try:
        found = parse(record)
    except Rejected as reason:
        if not isinstance(reason, Unreadable):
            read.count(record.file, 0, size, str(reason), is_rejected=not isinstance(reason, Omitted))
        return reason
    read.count(record.file, len(found), size)
    return found


def read_input(
    inputs: list[str],
    parse: Parse,
    make: Callable[[Document], list[Made]],
    say: Callable[[str], None],
    nothing: str,
    allow_rejected: float | None = None,
    may_reject: bool = True,
) -> list[Made]:
    """Everything that is made of the documents of an input, without links and files of no known format, as is said.

    parse:   the documents of a record; it raises Rejected or Omitted where there is none
    make:    what a document comes to, which may be nothing
    say:     is told of the records that are not as they must be, and of those that are omitted
    nothing: what is wrong where there is nothing in all of the input
    allow_rejected: the share of the bytes that may be rejected, see ``rejection``
    may_reject: whether the command has --allow_rejected, which messages then advise

    Raises KinspanError where a file cannot be read to its end, where nothing is found or too much is rejected.
    """
    files, skipped = find_input_files(inputs, allow_skipped=True)
    if skipped:
        say(f"left out files that cannot be read: {format_skipped(skipped)}")
    found: list[Made] = []
    rejected: list[str] = []
    omitted: Counter[str] = Counter()
    read = ReadTally()
    for file in files:
        for record in show_progress("reading", "records", read_records(file.name, called=file.called)):
            parsed = parse_counted(record, measure_content(record.content), read, parse)
            if isinstance(parsed, Skipped | Omitted):
                omitted[str(parsed)] += 1
            elif isinstance(parsed, Unreadable):
                raise KinspanError(f"{record.file}: {parsed}") from parsed
            elif isinstance(parsed, Rejected):
                rejected.append(f"{record.file}, record {record.line}: {parsed}")
            else:
                found += chain.from_iterable(map(make, parsed))
    if not found:
        first = f"; rejected: {len(rejected):,} records; the first is {rejected[0]}" if rejected else ""
        first = first or "".join(f"; omitted: {reason}" for reason in list(omitted)[:1])
        raise KinspanError(f"{' '.join(inputs)}: {nothing}{first}")
    refuse_rejected(read, allow_rejected, " ".join(inputs), may_reject)
    if rejected:
        sizes = f"{format_bytes(read.total['rejected_bytes'])} of {format_bytes(read.total['bytes'])}"
        say(f"rejected: {len(rejected):,} records ({sizes}); the first is {rejected[0]}")
    for reason, count in omitted.items():
        say(f"omitted {count:,} record{'s' * (count > 1)}: {reason}")
    return found
