"""How much of the input was rejected, and by which files: one rule for every command that reads documents.

A file that yields no document, or more than a hundredth of all bytes, is more than a few broken records: such as a file
of another format, or with other names of fields. The command then refuses, and names the files. Bytes are those of
``readers.reader.measure_content``, for records that are accepted and for those that are rejected alike.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError

from .document import SKIPPED, UNREADABLE

ALLOW_REJECTED = (  # the flag's help
    "Share of the input's bytes that may be rejected as no documents, files without any document among them. Without "
    "it: 0.01, and each file must yield a document."
)
MAX_SHARE = 0.01  # of the bytes that were read may be rejected without --allow_rejected
NAMED_FILES = 3
FLAGS = {UNREADABLE: "--allow_damaged", SKIPPED: "--allow_skipped"}
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


class ReadTally:
    """What was read in total, and of each file that lost something. The tallies of tasks add up.

    total:   how many documents, records and bytes, how many records were rejected, and their ``rejected_bytes``
    losing:  the same of files with a rejected record, or without a document; and of those that several tasks read
    reasons: why the first of such a file's records that are no documents is none
    more:    how many more files without a document there are than are remembered

    shared:  the files of which other tasks read other parts
    """

    def __init__(self, shared: Iterable[str] = ()) -> None:
        self.total: Counter[str] = Counter()
        self.losing: dict[str, Counter[str]] = {}
        self.reasons: dict[str, str] = {}
        self.more = 0
        self._shared = frozenset(shared)
        self._name, self._counts, self._reason = "", Counter[str](), ""  # of the file that is being read

    def count(self, name: str, documents: int, size: int, reason: str = "", is_rejected: bool = False) -> None:
        """Count a record of ``size`` bytes of a file, whose records come one after another.

        reason: why it is no document
        """
        if name != self._name:
            self.close()
        self._name, self._reason = name, self._reason or reason
        self._counts.update(documents=documents, records=1, bytes=size)
        if is_rejected:
            self._counts.update(rejected=1, rejected_bytes=size)

    def close(self) -> None:
        """Add what was counted of the last file."""
        if self._counts:
            self.total.update(self._counts)
            self._keep(self._name, self._counts, self._reason, self._name in self._shared)
        self._counts, self._reason = Counter(), ""

    def _keep(self, name: str, counts: Counter[str], reason: str, is_shared: bool) -> None:
        if counts["documents"] and not counts["rejected"] and not is_shared:
            return
        if name in self.losing or is_shared or len(self.losing) < MAX_FILES:
            self.losing.setdefault(name, Counter()).update(counts)
            self.reasons[name] = self.reasons.get(name) or reason
        else:
            self.more += not counts["documents"]

    def add(self, other: "ReadTally") -> None:
        self.total.update(other.total)
        self.more += other.more
        for name, counts in other.losing.items():
            self._keep(name, counts, other.reasons[name], is_shared=bool(counts["documents"]))

    def to_json(self) -> dict[str, Any]:
        self.close()
        losing = {name: {**counts, "reason": self.reasons[name]} for name, counts in self.losing.items()}
        return {"total": self.total, "losing": losing, "more": self.more}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ReadTally":
        tally = cls()
        fields["total"].pop("reason", None)  # which earlier versions have
        tally.total, tally.more = Counter(fields["total"]), fields["more"]
        tally.reasons = {name: counts.pop("reason") for name, counts in fields["losing"].items()}
        tally.losing = {name: Counter(counts) for name, counts in fields["losing"].items()}
        return tally


def refuse_rejected(tally: ReadTally, allowed: float | None, what: str, may_reject: bool = True) -> None:
    """Raise KinspanError, which names the files, where too much was rejected.

    what:    what was read, as the message calls it
    allowed: the share of the bytes that may be rejected; None where the user did not say, and then no file may be
             without a document either
    """
    tally.close()
    total = tally.total
    share = total["rejected_bytes"] / max(1, total["bytes"])
    way = f", or give --allow_rejected {math.ceil(share * 100) / 100:g} to go without" if may_reject else ""
    losing = tally.losing
    fruitless = [k for k, counts in losing.items() if not counts["documents"] and counts["bytes"] + counts["rejected"]]
    if fruitless and allowed is None:
        count = len(fruitless) + tally.more
        named = "; ".join(_describe(name, tally) for name in fruitless[:NAMED_FILES])
        others = f"; and {count - NAMED_FILES:,} more" if count > NAMED_FILES else ""
        raise KinspanError(
            f"{what}: {count:,} file{'s' * (count > 1)} without a document: {named}{others}: mend or leave out what is "
            f"named{way}"
        )
    if share > (MAX_SHARE if allowed is None else allowed):
        worst = sorted(losing, key=lambda name: -losing[name]["rejected_bytes"])[:NAMED_FILES]
        named = "; ".join(_describe(name, tally) for name in worst if losing[name]["rejected"])
        records = f"{total['rejected']:,} of {total['records']:,} records"
        sizes = f"{format_bytes(total['rejected_bytes'])} of {format_bytes(total['bytes'])}"
        raise KinspanError(
            f"{what}: {share:.1%} of what was read was rejected, {records}, {sizes}: {named}: mend or leave out what "
            f"is named{way}"
        )


def refuse_missing(folder: Path, allowed: Allowed, is_finished: bool) -> None:
    """Raise KinspanError for input that could not be read to its end, or is of no known format, if not allowed.

    folder: that of the corpus, finished or not, with ``rejected.jsonl``
    """
    for kind, is_allowed in ((UNREADABLE, allowed.damaged), (SKIPPED, allowed.skipped)):
        missing = [] if is_allowed else list(list_rejected(folder / "rejected.jsonl", kind))
        if not missing:
            continue
        name, reason = missing[0]["file"], missing[0]["reason"]
        others = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        if is_finished:
            way = f", or give {FLAGS[kind]} to use the corpus as it is" if allowed.may_allow else ""
            raise KinspanError(
                f"--output_dir {folder} holds this corpus without all of {name}{others}: choose another folder or "
                f"delete it to read that again{way}"
            )
        way = f", or give {FLAGS[kind]} to go without it" if allowed.may_allow else ""
        if kind == UNREADABLE:
            raise KinspanError(
                f"{name}, record {missing[0]['line']}{others}: {reason}; copy or fetch the file again{way}"
            )
        raise KinspanError(f"{name}{others}: {reason}{way}")


def _describe(name: str, tally: ReadTally) -> str:
    counts, reason = tally.losing[name], tally.reasons[name]
    rejected = counts["rejected"]
    records = f"{rejected:,} of {counts['records']:,} records rejected, " if rejected else ""
    size = counts["rejected_bytes"] if rejected else counts["bytes"]
    reason = f"; first: {reason}" if reason else ""
    return f"{name} ({records}{format_bytes(size)}{reason})"


def list_rejected(path: Path, kind: str = "") -> Iterator[dict[str, Any]]:
    """List the entries of a rejected.jsonl, those whose reason begins with ``kind``; none where there is no file."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (entry for entry in map(json.loads, file) if entry["reason"].startswith(kind))


def format_bytes(count: int) -> str:
    """Write a number of bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count:,} bytes"
