"""How much of the input was rejected, and by which files: one rule for every command that reads documents.

A file that yields no document, or more than a hundredth of all bytes, is more than a few broken records: such as a file
of another format, or with other names of fields. The command then refuses, and names the files. Bytes are those of
``readers.reader.measure_content``, for records that are accepted and for those that are rejected alike.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import KinspanError

ALLOW_REJECTED = (  # the flag's help
    "Share of the input's bytes that may be rejected as no documents, files without any document among them. Without "
    "it: 0.01, and each file must yield a document."
)
MAX_SHARE = 0.01  # of the bytes that were read may be rejected without --allow_rejected
NAMED_FILES = 3
MAX_FILES = 1000  # that are remembered by name: a broken archive may have millions


@dataclass(frozen=True)
class Allowed:
    """What of the input may be missing: see ``pipeline.prepare``.

    may_allow: whether the command has the flags --allow_..., which messages then advise
    """

    damaged: bool
    skipped: bool
    rejected: float | None
    may_allow: bool = True


@dataclass
class ReadCounts:
    """What was read of a file, or of all of them. ``reason`` is that of the first record which is no document."""

    documents: int = 0
    records: int = 0
    bytes: int = 0
    rejected: int = 0
    rejected_bytes: int = 0
    reason: str = ""

    def add(self, other: "ReadCounts") -> None:
        for name in ("documents", "records", "bytes", "rejected", "rejected_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = self.reason or other.reason


class ReadTally:
    """What was read in total, and of each file that lost something. The tallies of tasks add up.

    losing: the files with a rejected record, or without a document; and those that several tasks read
    more:   how many more files without a document there are than are remembered

    shared: the files of which other tasks read other parts
    """

    def __init__(self, shared: Iterable[str] = ()) -> None:
        self.total = ReadCounts()
        self.losing: dict[str, ReadCounts] = {}
        self.more = 0
        self._shared = frozenset(shared)
        self._name, self._counts = "", ReadCounts()  # of the file that is being read

    def count(self, name: str, documents: int, size: int, reason: str = "", is_rejected: bool = False) -> None:
        """Count a record of ``size`` bytes of a file, whose records come one after another.

        reason: why it is no document
        """
        if name != self._name:
            self.close()
        self._name = name
        self._counts.add(ReadCounts(documents, 1, size, int(is_rejected), size * is_rejected, reason))

    def close(self) -> None:
        """Add what was counted of the last file."""
        if self._counts.records:
            self.total.add(self._counts)
            self._keep(self._name, self._counts, self._name in self._shared)
        self._counts = ReadCounts()

    def _keep(self, name: str, counts: ReadCounts, is_shared: bool) -> None:
        if counts.documents and not counts.rejected and not is_shared:
            return
        if name in self.losing or is_shared or len(self.losing) < MAX_FILES:
            self.losing.setdefault(name, ReadCounts()).add(counts)
        else:
            self.more += not counts.documents

    def add(self, other: "ReadTally") -> None:
        self.total.add(other.total)
        self.more += other.more
        for name, counts in other.losing.items():
            self._keep(name, counts, is_shared=bool(counts.documents))

    def to_json(self) -> dict[str, Any]:
        self.close()
        losing = {name: asdict(counts) for name, counts in self.losing.items()}
        return {"total": asdict(self.total), "losing": losing, "more": self.more}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ReadTally":
        tally = cls()
        tally.total, tally.more = ReadCounts(**fields["total"]), fields["more"]
        tally.losing = {name: ReadCounts(**counts) for name, counts in fields["losing"].items()}
        return tally


def refuse_rejected(tally: ReadTally, allowed: float | None, flag: str, may_reject: bool = True) -> None:
    """Raise KinspanError, which names the files, where too much was rejected.

    allowed: the share of the bytes that may be rejected; None where the user did not say, and then no file may be
             without a document either
    flag:    that names the files
    may_reject: whether the command has --allow_rejected
    """
    tally.close()
    total = tally.total
    share = total.rejected_bytes / max(1, total.bytes)
    way = f", or give --allow_rejected {math.ceil(share * 100) / 100:g} to go without" if may_reject else ""
    fruitless = [
        name for name, counts in tally.losing.items() if not counts.documents and (counts.bytes or counts.rejected)
    ]
    if fruitless and allowed is None:
        count = len(fruitless) + tally.more
        named = "; ".join(_describe(name, tally.losing[name]) for name in fruitless[:NAMED_FILES])
        others = f"; and {count - NAMED_FILES:,} more" if count > NAMED_FILES else ""
        raise KinspanError(
            f"{flag}: {count:,} file{'s' * (count > 1)} without a document: {named}{others}: mend or leave out what is "
            f"named{way}"
        )
    if share > (MAX_SHARE if allowed is None else allowed):
        worst = sorted(tally.losing, key=lambda name: -tally.losing[name].rejected_bytes)[:NAMED_FILES]
        named = "; ".join(_describe(name, tally.losing[name]) for name in worst if tally.losing[name].rejected)
        raise KinspanError(
            f"{flag}: {share:.1%} of what was read was rejected, {total.rejected:,} of {total.records:,} records, "
            f"{format_bytes(total.rejected_bytes)} of {format_bytes(total.bytes)}: {named}: mend or leave out what is "
            f"named{way}"
        )


def _describe(name: str, counts: ReadCounts) -> str:
    records = f"{counts.rejected:,} of {counts.records:,} records rejected, " if counts.rejected else ""
    size = counts.rejected_bytes if counts.rejected else counts.bytes
    reason = f"; first: {counts.reason}" if counts.reason else ""
    return f"{name} ({records}{format_bytes(size)}{reason})"


def list_rejected(path: Path, kind: str = "") -> Iterator[dict[str, Any]]:
    """List the entries of a rejected.jsonl, those whose reason begins with ``kind``; none where there is no file."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (entry for entry in map(json.loads, file) if entry["reason"].startswith(kind))


def format_bytes(count: int) -> str:
    """Write a number of bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count:,} bytes"
