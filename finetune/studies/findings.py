"""What the lines of a study say: the figures of its rows, and every comparison of its file with its tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from finetune.evaluation.contrasts import Contrast, correct, measure_contrast

from .lines import ResultStore, RowOutcome, average_outcomes, read_outcome, read_untrained
from .rows import Study, StudyRow


@dataclass(frozen=True)
class Finding:
    """A comparison of the study's file.

    contrast: None as long as a row lacks a seed
    partial:  then the contrast of the seeds that have run, where every row has two or more; nothing is shown by it
    seeds:    how many of each row have run
    """

    rows: tuple[StudyRow, ...]
    contrast: Contrast | None
    partial: Contrast | None
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        """Says in words what is less what."""
        one, other, *more = (row.title for row in self.rows)
        return f"({one} less {other}) less ({more[0]} less {more[1]})" if more else f"{one} less {other}"

    @property
    def label(self) -> str:
        """The same in the short names of arms, for figures."""
        return " less ".join(row.arm for row in self.rows)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of its rows."""
        return tuple(row.name for row in self.rows)


@dataclass(frozen=True)
class Findings:
    """A study as far as it has run."""

    study: Study
    store: ResultStore

    @property
    def content(self) -> dict[str, Any]:
        """What the study's file says."""
        return self.study.matrix or {}

    @cached_property
    def rows(self) -> dict[str, StudyRow]:
        """All rows by name."""
        return {row.name: row for row in self.study.rows}

    @cached_property
    def outcomes(self) -> dict[str, RowOutcome]:
        """The rows that have run, at least one seed of them, by name; a mean once its rows share a seed."""
        read = {name: read_outcome(self.store, row) for name, row in self.rows.items() if not row.mean_of}
        found = {name: outcome for name, outcome in read.items() if outcome}
        for row in self.rows.values():
            if row.mean_of and all(name in found for name in row.mean_of):
                mean = average_outcomes(row, [found[name] for name in row.mean_of])
                found |= {row.name: mean} if mean else {}
        return {name: found[name] for name in self.rows if name in found}

    @cached_property
    def untrained(self) -> dict[str, RowOutcome]:
        """What needs no training, on each set, by names such as ``BM25/wikiqa``."""
        found = {}
        for set_name, told in self.content["sets"].items():
            targets = tuple((told or {}).get("targets", ()))
            if self.store.read("materials" if targets else set_name) is None:
                continue
            for name, title in self.content.get("untrained", {}).items():
                ap, rr = read_untrained(self.store, name, set_name, targets)
                row = StudyRow(f"{name}/{set_name}", {}, title=title, set=set_name, compared=(0,))
                found[row.name] = RowOutcome(row, ap[None], rr[None], [])
        return found

    def select(self, patterns: Sequence[str], but: Sequence[str] = ()) -> list[RowOutcome]:
        """What has run, and what needs no training, whose names match, in the order of the patterns."""
        known = {**self.untrained, **self.outcomes}
        return [
            known[name]
            for name in dict.fromkeys(n for pattern in patterns for n in known if fnmatchcase(n, pattern))
            if not any(fnmatchcase(name, pattern) for pattern in but)
        ]

    @cached_property
    def findings(self) -> list[Finding]:
        """Every comparison of the file."""
        return self.measure(self.content["comparisons"])

    @cached_property
    def primary(self) -> list[Finding]:
        """The one comparison that is not corrected, where the file has one."""
        return self.measure([self.content["primary"]])

    def measure(self, comparisons: Sequence[Sequence[str]]) -> list[Finding]:
        """These comparisons, corrected for their number; a row counts once all its seeds have run."""
        listed = [tuple(self.rows[name] for name in names) for names in comparisons]
        complete = [all(self.is_complete(row.name) for row in rows) for rows in listed]
        measured = [self._measure(rows) for rows in listed]
        corrected = correct([m if done else None for m, done in zip(measured, complete, strict=True)])
        return [
            Finding(rows, contrast, None if contrast else m, self._count_seeds(rows))
            for rows, m, contrast in zip(listed, measured, corrected, strict=True)
        ]

    def _count_seeds(self, rows: tuple[StudyRow, ...]) -> tuple[int, ...]:
        return tuple(len(self.outcomes[row.name].ap) if row.name in self.outcomes else 0 for row in rows)

    def _measure(self, rows: tuple[StudyRow, ...]) -> Contrast | None:
        """The contrast of the seeds that have run; None where a row has fewer than two, of several."""
        counts = self._count_seeds(rows)
        if any(count < min(2, len(row.compared)) for row, count in zip(rows, counts, strict=True)):
            return None
        return measure_contrast([self.outcomes[row.name].ap for row in rows])

    def is_complete(self, name: str) -> bool:
        """Whether all seeds have run that comparisons take."""
        return name in self.outcomes and self.outcomes[name].is_complete

    def find(self, *names: str) -> Finding | None:
        """A comparison by the names of its rows; None where the file has no such one."""
        return next((finding for finding in self.findings if finding.key == names), None)

    def read_contaminated(self, set_name: str, kind: str) -> list[int]:
        """The numbers of a set's questions of which the corpus has a right answer, or any candidate."""
        return (self.store.read(set_name) or {})["contaminated"][kind]
