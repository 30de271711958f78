"""The tables of a study's page, each made of its lines; a page names them, see ``page.py``."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.contrasts import Contrast, find_detectable
from finetune.evaluation.significance import SIGNIFICANT, compare, compare_seeds, drop_equal_seeds, format_p

from .findings import Finding, Findings
from .lines import RowOutcome
from .matrix import hash_settings, name_training
from .rows import StudyRow

Cell = Callable[[Findings, RowOutcome], str]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first column to the left."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def format_figure(value: float) -> str:
    """A figure from 0 to 1 with three decimals and no leading zero."""
    return f"{value:.3f}".removeprefix("0")


def format_difference(value: float) -> str:
    """A difference with its sign, three decimals and no leading zero."""
    sign = "-" if round(value, 3) < 0 else "+"
    return sign + format_figure(abs(value))


def format_map(outcome: RowOutcome) -> str:
    """Mean over seeds, and their standard deviation in brackets."""
    deviation = f" ({format_figure(outcome.maps.std(ddof=1))})" if len(outcome.maps) > 1 else ""
    return format_figure(outcome.maps.mean()) + deviation


# Rows ---------------------------------------------------------------------------------------------------------------


def list_rows(
    found: Findings, rows: str, columns: str = "seeds map mrr dev updates at_end precision", but: str = ""
) -> str:
    """A line of each row that has run.

    rows, but: patterns of names, parted by ``;``: those that are listed, and those of them that are not
    columns:   of COLUMNS; ``NAME:SET``, such as ``map:wikiqa``, is the column of the same arm on another set
    """
    listed = found.select(part_patterns(rows), part_patterns(but))
    starts = {outcome.row.start for outcome in listed if outcome.row.start}
    cells = [_find_column(found, name) for name in columns.split()]
    lines = [[_name(outcome.row, len(starts) > 1), *(cell(found, outcome) for _, cell in cells)] for outcome in listed]
    return format_table(["", *(header for header, _ in cells)], lines)


def part_patterns(patterns: str) -> list[str]:
    """The patterns of a page, which parts them by ``;``."""
    return [pattern.strip() for pattern in patterns.split(";") if pattern.strip()]


def _name(row: StudyRow, tells_start: bool) -> str:
    return (f"({row.start}) " if tells_start and row.start else "") + row.title


def _find_column(found: Findings, name: str) -> tuple[str, Cell]:
    kind, _, of = name.partition(":")
    if kind not in COLUMNS:
        known = ", ".join(COLUMNS)
        raise KinspanError(f"a page's table has the column {name}: known are {known}, each as NAME or NAME:SET")
    header, say = COLUMNS[kind]
    if not of:
        return header, say
    title = found.content["sets"][of].get("title", of)
    return (title if kind == "map" else f"{header}, {title}"), lambda found, o: _say_on(found, o, of, say)


def _say_on(found: Findings, outcome: RowOutcome, set_name: str, say: Cell) -> str:
    other = outcome.row.name.removesuffix(outcome.row.set) + set_name
    known = found.outcomes.get(other) or found.untrained.get(other)
    return say(found, known) if known else ""


def _count_seeds(_: Findings, outcome: RowOutcome) -> str:
    """How many seeds have run, and of how many where some have not."""
    if not outcome.lines:
        return ""
    of = "" if outcome.is_complete or outcome.row.mean_of else f" of {len(outcome.row.compared)}"
    return f"{len(outcome.ap)}{of}"


def _say_mrr(_: Findings, outcome: RowOutcome) -> str:
    return format_figure(outcome.rr.mean())


def _say_dev(_: Findings, outcome: RowOutcome) -> str:
    return format_figure(np.mean([line["dev_map"] for line in outcome.tuned])) if outcome.tuned else ""


def _say_updates(_: Findings, outcome: RowOutcome) -> str:
    return f"{np.mean([line['finetune']['best_step'] for line in outcome.tuned]):.0f}" if outcome.tuned else ""


def _count_best_at_end(_: Findings, outcome: RowOutcome) -> str:
    at_end = [line["finetune"]["best_step"] == line["finetune"]["steps"] for line in outcome.tuned]
    return str(sum(at_end)) if at_end else ""


def _say_precision(_: Findings, outcome: RowOutcome) -> str:
    known = outcome.precisions
    counts = [f"{known.count(p)} {p}" for p in dict.fromkeys(known)]
    return known[0] if len(counts) == 1 else ", ".join(counts)


def _say_auc(_: Findings, outcome: RowOutcome) -> str:
    """How well a way of training tells held-out pairs of its own texts apart, the mean over seeds."""
    trained = [line["training"]["held_out_auc"][1] for line in outcome.lines if line.get("training")]
    return format_figure(float(np.mean(trained))) if trained and not outcome.row.mean_of else ""


COLUMNS: dict[str, tuple[str, Cell]] = {
    "seeds": ("seeds", _count_seeds),
    "map": ("MAP (sd)", lambda _, o: format_map(o)),
    "mrr": ("MRR", _say_mrr),
    "dev": ("dev MAP", _say_dev),
    "updates": ("updates", _say_updates),
    "at_end": ("best at the end", _count_best_at_end),
    "precision": ("precision", _say_precision),
    "auc": ("AUC, held-out pairs", _say_auc),
}


def list_kinds(found: Findings, set: str, by: str, rows: str) -> str:
    """The MAP of rows on each kind of a set's questions, see ``kinds.find_kinds``; rows that have not run are left out.

    by: ``asked`` or ``overlap``
    """
    listed = found.select(part_patterns(rows))
    names = [o.row.title + ("" if o.is_complete or o.row.mean_of else " (not all seeds yet)") for o in listed]
    kinds = (found.store.read(set) or {}).get("kinds", {}).get(by, {})
    lines = [
        [kind, str(len(numbers)), *(format_figure(outcome.ap[:, numbers].mean()) for outcome in listed)]
        for kind, numbers in kinds.items()
        if numbers
    ]
    return format_table([by, "questions", *names], lines)


def list_groups(found: Findings) -> str:
    """How many rows of each group that has begun have run with all their seeds, and the hours that they took.

    A pre-training that several groups share counts in the first one.
    """
    groups: dict[str, list[str]] = {}
    pretrained: set[Any] = set()
    for name, row in found.rows.items():
        if not row.mean_of:
            groups.setdefault(row.group, []).append(name)
    lines, waiting = [], 0
    for group, names in groups.items():
        began = [found.outcomes[name] for name in names if name in found.outcomes]
        told = {(o.row.lines_of, line["seed"]): (o.row, line) for o in began for line in o.lines}
        if not told:
            waiting += 1
            continue
        seconds = 0.0
        for row, line in told.values():
            seconds += line["seconds"]
            key = row.start, hash_settings(row.pretrain), line["seed"]
            if line.get("pretrain") and key not in pretrained:
                pretrained.add(key)
                seconds += line["pretrain"]["seconds"]
        done = sum(found.is_complete(name) for name in names)
        lines.append([group, str(len(names)), str(done), str(len(told)), f"{seconds / 3600:.2f}"])
    if waiting:
        lines.append([f"not begun: {waiting} groups", "", "", "", ""])
    header = ["group", "rows", "with all seeds", "lines", "hours"]
    return format_table(header, lines)


def list_pretrainings(found: Findings, rows: str = "*", but: str = "") -> str:
    """What each pre-training came to on held-out documents, so that a null is not for want of learning."""
    lines, seen = [], set()
    for outcome in found.select(part_patterns(rows), part_patterns(but)):
        made = [line["pretrain"] for line in outcome.lines if line.get("pretrain")]
        key = outcome.row.start, hash_settings(outcome.row.pretrain)
        if not made or key in seen:
            continue
        seen.add(key)
        cells = [
            f"({outcome.row.start}) {name_training(outcome.row)}",
            f"{np.mean([m['tokens'] for m in made]) / 1e6:.2f} M",
        ]
        cells.append(f"{np.mean([m['steps'] for m in made]):,.0f}")
        for figure in ("mlm_loss", "pair_loss", "pair_auc"):
            pairs = [[m[when].get(figure) for when in ("first_validation", "last_validation")] for m in made]
            known = [pair for pair in pairs if None not in pair]
            cells.append(" to ".join(f"{value:.3f}" for value in np.mean(known, axis=0)) if known else "")
        lines.append(cells)
    return format_table(["pre-training", "tokens", "updates", "masked-LM loss", "pair loss", "AUC of pairs"], lines)


# Comparisons --------------------------------------------------------------------------------------------------------


def list_contrasts(found: Findings, which: str = "all") -> str:
    """The comparisons of the file with their tests; which: ``primary`` for the one that is not corrected.

    One that lacks seeds has no p: it would be a test at a moment that nobody had fixed.
    """
    rows = []
    for finding in found.primary if which == "primary" else found.findings:
        c = finding.contrast or finding.partial
        title = _name_finding(found, finding)
        if finding.partial:
            planned = (len(row.compared) for row in finding.rows)
            counts, of = (" and ".join(map(str, dict.fromkeys(each))) for each in (finding.seeds, planned))
            title += f" *(so far {counts} of {of} seeds)*"
        if c is None:
            rows.append([title, "not run yet", "", "", "", ""])
            continue
        corrected = f"**{format_p(c.corrected)}**" if c.is_shown else format_p(c.corrected)
        p = ("", "", "") if finding.partial else (format_p(c.over_questions), _say_p(c.over_seeds), corrected)
        rows.append([title, format_difference(c.difference), _say_interval(c), *p])
    return format_table(["comparison", "MAP", "95% interval", "p over questions", "p over seeds", "corrected p"], rows)


def list_contrasts_without(found: Findings, contaminated: str, which: str = "all") -> str:
    """The comparisons of two rows without the contaminated questions of this kind, p not corrected."""
    rows = []
    for finding in found.primary if which == "primary" else found.findings:
        if finding.contrast is None or len(finding.rows) != 2:
            continue
        left_out = found.read_contaminated(finding.rows[0].set, contaminated)
        one, other = (
            drop_equal_seeds(np.delete(found.outcomes[row.name].ap, left_out, axis=1)) for row in finding.rows
        )
        test = compare(one, other)
        seeds = compare_seeds(one.mean(axis=1), other.mean(axis=1)) if min(len(one), len(other)) > 1 else None
        figures = format_difference(finding.contrast.difference), format_difference(test.difference)
        rows.append([_name_finding(found, finding), *figures, format_p(test.over_questions), _say_p(seeds)])
    return format_table(["comparison", "all", "without them", "p over questions", "p over seeds"], rows)


def list_detectable(found: Findings) -> str:
    """What a true difference must be for both tests to find it at 5% in 80 of 100 studies, by start, set and seeds."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for finding in found.findings:
        if finding.contrast and len(finding.rows) == 2 and min(finding.contrast.parts.num_seeds) > 1:
            row, parts = finding.rows[0], finding.contrast.parts
            key = row.start, row.set, row.share, row.questions, tuple(sorted(parts.num_seeds))
            groups.setdefault(key, []).append(parts)
    rows, strict = [], SIGNIFICANT / len(found.findings)
    for (start, set_name, share, questions, seeds), listed in groups.items():
        drawn = f", {questions} questions" if questions else "" if share == 1 else f", {share:.0%} of the questions"
        each = sorted(find_detectable([of_one]) for of_one in listed)
        figures = (find_detectable(listed), find_detectable(listed, strict))
        spread = f"{format_figure(each[0])} to {format_figure(each[-1])}"
        name = f"start ({start}), {set_name}{drawn}"
        rows.append([name, " and ".join(map(str, seeds)), str(len(listed)), spread, *map(format_figure, figures)])
    header = ["set", "seeds", "comparisons", "alone, least to most", "alone, mean", "corrected, mean"]
    return format_table(header, rows)


def _say_interval(contrast: Contrast) -> str:
    return f"{format_difference(contrast.low)} to {format_difference(contrast.high)}"


def _say_p(p: float | None) -> str:
    return "" if p is None else format_p(p)


def _name_finding(found: Findings, finding: Finding) -> str:
    """With the start, and with the set unless it is the study's first."""
    row, sets = finding.rows[0], found.content["sets"]
    on = "" if row.set == next(iter(sets)) else f"; {(sets[row.set] or {}).get('title', row.set)}"
    return f"({row.start}) {finding.title}{on}"
