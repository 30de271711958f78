"""What the results say: every comparison of the recipe, the bars, and the sentences that follow from them by rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from finetune.evaluation.significance import SIGNIFICANT, compare, compare_seeds, format_p

from .recipe import FINETUNE, Recipe, Row
from .results import Outcome, Store, read_outcome
from .statistics import Contrast, Parts, correct, measure_contrast, measure_error_rate


@dataclass(frozen=True)
class Finding:
    """A comparison of the recipe.

    contrast: None as long as a row lacks a seed
    partial:  then the contrast of the seeds that have run, where every row has two or more; nothing is shown by it
    seeds:    how many of each row have run
    """

    rows: tuple[Row, ...]
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
        return " less ".join(row.name.removeprefix(f"{row.start}/").removesuffix(f"/{row.set}") for row in self.rows)

    @property
    def progress(self) -> str:
        """Says how many seeds have run, in words."""
        counts = " and ".join(map(str, dict.fromkeys(self.seeds)))
        return f"so far {counts} of {max(len(row.compared) for row in self.rows)} seeds"

    @property
    def key(self) -> tuple[str, ...]:
        """The names of its rows."""
        return tuple(row.name for row in self.rows)


@dataclass(frozen=True)
class Evidence:
    """The study as far as it has run."""

    recipe: Recipe
    store: Store

    @cached_property
    def rows(self) -> dict[str, Row]:
        """All rows of the recipe by name."""
        return {row.name: row for row in self.recipe.rows}

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        """The rows that have run, at least one seed of them, by name."""
        found = {name: read_outcome(self.store, row) for name, row in self.rows.items()}
        return {name: outcome for name, outcome in found.items() if outcome}

    @cached_property
    def findings(self) -> list[Finding]:
        """Every comparison of the recipe."""
        return self.measure_findings(self.recipe.content["comparisons"])

    def measure_findings(self, comparisons: Sequence[Sequence[str]]) -> list[Finding]:
        """These comparisons, corrected for their number; a row counts once all its seeds have run."""
        listed = [tuple(self.rows[name] for name in names) for names in comparisons]
        complete = [all(self.is_complete(row.name) for row in rows) for rows in listed]
        measured = [self._measure(rows) for rows in listed]
        corrected = correct([m if done else None for m, done in zip(measured, complete, strict=True)])
        return [
            Finding(rows, contrast, None if contrast else m, self._count_seeds(rows))
            for rows, m, contrast in zip(listed, measured, corrected, strict=True)
        ]

    def _count_seeds(self, rows: tuple[Row, ...]) -> tuple[int, ...]:
        return tuple(len(self.outcomes[row.name].ap) if row.name in self.outcomes else 0 for row in rows)

    def _measure(self, rows: tuple[Row, ...]) -> Contrast | None:
        """The contrast of the seeds that have run; None where a row has fewer than two, of several."""
        counts = self._count_seeds(rows)
        if any(count < min(2, len(row.compared)) for row, count in zip(rows, counts, strict=True)):
            return None
        return measure_contrast([self.outcomes[row.name].ap for row in rows])

    def is_complete(self, name: str) -> bool:
        """Whether all seeds have run that comparisons take."""
        found = self.outcomes.get(name)
        return found is not None and len(found.ap) == len(self.rows[name].compared)

    def find(self, *names: str) -> Finding | None:
        """A comparison by the names of its rows; None where the recipe has no such one."""
        return next((finding for finding in self.findings if finding.key == names), None)

    @cached_property
    def sets(self) -> dict[str, dict[str, Any]]:
        """What is known of each set beside its rows."""
        found = {name: self.store.read(name) for name in self.recipe.content["sets"]}
        return {name: content for name, content in found.items() if content}

    def collect_parts(self) -> dict[tuple[str, str, float, tuple[int, ...]], list[Parts]]:
        """For each start, set, share of the training questions and numbers of seeds, the variances of its comparisons
        of two rows that have several seeds each: what the smallest detectable difference follows from."""
        found: dict[tuple[str, str, float, tuple[int, ...]], list[Parts]] = {}
        for finding in self.findings:
            if finding.contrast and len(finding.rows) == 2 and min(finding.contrast.parts.num_seeds) > 1:
                row, parts = finding.rows[0], finding.contrast.parts
                found.setdefault((row.start, row.set, row.share, tuple(sorted(parts.num_seeds))), []).append(parts)
        return found

    @cached_property
    def error_rate(self) -> dict[str, Any] | None:
        """Of the ten seeds of one row; None as long as one has not run."""
        told = self.recipe.content["calibration"]
        row = self.rows[told["row"]]
        found = read_outcome(self.store, row, row.seeds)
        return measure_error_rate(found.ap) if found and len(found.ap) == told["seeds"] else None


def list_contamination(evidence: Evidence, start: str, set_name: str) -> list[tuple[Row, float, float, float]]:
    """For each fine-tuned row of all labels: MAP on all questions, on those without a right answer in the corpus, and
    on those without any candidate in it."""
    told = evidence.sets[set_name]["contaminated"]
    listed = []
    for outcome in evidence.outcomes.values():
        row = outcome.row
        if (row.start, row.set, row.measure, row.share) == (start, set_name, FINETUNE, 1.0):
            means = outcome.ap.mean(axis=0)
            kept = [np.delete(means, told[kind]).mean() for kind in ("answer", "candidate")]
            listed.append((row, float(means.mean()), float(kept[0]), float(kept[1])))
    return listed


def compare_without_contaminated(evidence: Evidence, finding: Finding) -> tuple[float, float, float | None] | None:
    """The difference of two rows on the questions none of whose right answers is in the corpus, with p over questions
    and over seeds, not corrected; None where a row has not run."""
    if finding.contrast is None or len(finding.rows) != 2:
        return None
    told = evidence.sets[finding.rows[0].set]["contaminated"]["answer"]
    one, other = (np.delete(evidence.outcomes[row.name].ap, told, axis=1) for row in finding.rows)
    test = compare(one, other)
    seeds = compare_seeds(one.mean(axis=1), other.mean(axis=1)) if min(len(one), len(other)) > 1 else None
    return test.difference, test.over_questions, seeds


def compare_in_half_precision(evidence: Evidence, finding: Finding) -> Contrast | None:
    """The contrast of the seeds alone that were trained in bf16, where a row has others too and two such at least."""
    outcomes = [evidence.outcomes[row.name] for row in finding.rows if row.name in evidence.outcomes]
    if len(outcomes) < len(finding.rows) or not any(len(set(o.precisions)) > 1 for o in outcomes):
        return None
    kept = [o.ap[[p == "bf16" for p in o.precisions]] for o in outcomes]
    return measure_contrast(kept) if min(map(len, kept)) > 1 else None


def say_contrast(contrast: Contrast) -> str:
    """A difference with its interval and corrected p, in a sentence's words."""
    return (
        f"{format_difference(contrast.difference)} [{format_difference(contrast.low)}, "
        f"{format_difference(contrast.high)}], corrected p {format_p(contrast.corrected)}"
    )


def say_unfinished(finding: Finding | None) -> str:
    """What is known of a comparison before all its seeds have run."""
    if finding is None or finding.partial is None:
        return "not run yet"
    c = finding.partial
    interval = f"{format_difference(c.difference)} [{format_difference(c.low)}, {format_difference(c.high)}]"
    return f"{finding.progress}: {interval}"


def judge(contrast: Contrast, what: str, over: str) -> str:
    """Says whether ``what`` ranks better than ``over``, and what a null excludes."""
    if contrast.is_shown:
        verdict = "ranks better than" if contrast.difference > 0 else "ranks worse than"
        return f"{what} {verdict} {over}: {say_contrast(contrast)}."
    return (
        f"{what} is not shown to rank better or worse than {over}: {say_contrast(contrast)}. The interval excludes a "
        f"gain above {format_figure(max(contrast.high, 0))} and a loss above {format_figure(max(-contrast.low, 0))}."
    )


def judge_power(evidence: Evidence) -> str:
    """Whether flipped labels were found."""
    told = evidence.recipe.content["calibration"]
    finding = evidence.find(told["flipped"], told["row"])
    contrast = finding and finding.contrast
    if contrast is None:
        return say_unfinished(finding)
    alone = max(contrast.p)
    verdict = "found by both tests" if alone < SIGNIFICANT else "NOT found"
    after = "and after correction too" if contrast.is_shown else "but NOT after correction"
    return f"{verdict} (the greater p {format_p(alone)}), {after}: {say_contrast(contrast)}"


def format_figure(value: float) -> str:
    """A figure from 0 to 1 with three decimals and no leading zero."""
    return f"{value:.3f}".removeprefix("0")


def format_difference(value: float) -> str:
    """A difference with its sign, three decimals and no leading zero."""
    sign = "-" if round(value, 3) < 0 else "+"
    return sign + format_figure(abs(value))
