"""Fills the tables of benchmarks/DOSE.md, from `<!-- NAME -->` to `<!-- end -->`, and draws its figure.

python benchmarks/dose/tables.py
"""

import json
import re
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))
from benchmarks.dose import run
from benchmarks.dose.run import ALL, RECIPE, Row, parse_row
from finetune.evaluation.significance import compare_runs, correct_holm, estimate_error, format_p

DRAWS = 10_000  # of the bootstrap
COUNTS = (0, 25, 50, 100, 200, 400, ALL)  # labelled questions of the figure
CURVES = ("none-0", "ssp-12800", "ssp-51200", "ssp-204800", "gpu-3299840", "bi-0", "bi-ssp-51200")
BM25, COSINE = parse_row("bm25-none-0-0-selqa"), parse_row("minilm-cosine-0-0-selqa")


def read_lines(row: Row) -> list[dict[str, Any]]:
    """Returns the lines of a row by seed."""
    return sorted(run.read_lines(FOLDER / "lines" / f"{row.name}.jsonl"), key=lambda line: line["seed"])


def read_ap(row: Row) -> np.ndarray:
    """Returns the average precision of each seed and question, ``[S, Q]``; empty where none has run."""
    return np.array([line["ap"] for line in read_lines(row)])


def count_planned(row: Row) -> int:
    """Returns how many seeds a row is to have."""
    seeds = [block["seeds"] for block in RECIPE["blocks"] if row.name in block["rows"]]
    return max(seeds or [n for pattern, n in RECIPE["planned"].items() if fnmatchcase(row.name, pattern)][:1])


def title(row: Row, drawn: bool = True) -> str:
    """Returns a row's title, with the number of its questions where ``drawn``."""
    if row.start == "bm25":
        return "BM25 (all words, stemmed)"
    pairs = f", {row.pairs:,} pairs" if row.pairs not in (0, 51_200) else ""
    questions = f", {row.questions} questions" if row.questions else ", no labels"
    return RECIPE["titles"][row.arm] + pairs + (questions if drawn and row.arm != "cosine" else "")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown, without its empty columns."""
    kept = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line[column] for column in kept)} |" for line in (header, rule, *rows))


def short(value: float) -> str:
    """Returns a figure from 0 to 1 with three decimals and no leading zero."""
    return f"{value:.3f}".removeprefix("0")


def signed(value: float) -> str:
    """Returns a difference with its sign."""
    return ("-" if round(value, 3) < 0 else "+") + short(abs(value))


def find_interval(rows: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the 95% interval of the difference of two rows, each ``[S, Q]``, over questions and seeds together.

    A bootstrap draws questions, and of each row seeds, stretched since the mean of S drawn values varies too little by
    (S - 1) / S (Davison and Hinkley, 1997, section 3.8). The width is that of ``estimate_error`` and Student's t.
    """
    from scipy.stats import norm, t

    random, total, size = np.random.default_rng(0), np.zeros(DRAWS), rows[0].shape[1]
    asked = random.multinomial(size, np.full(size, 1 / size), size=DRAWS) / size
    for sign, row in zip((1, -1), rows, strict=True):
        count = len(row)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
        stretch = np.sqrt(count / (count - 1))
        total += sign * np.einsum("ds,ds->d", 1 / count + stretch * (drawn - 1 / count), asked @ row.T)
    mean, (error, freedom) = rows[0].mean() - rows[1].mean(), estimate_error(*rows)
    wider = error / total.std(ddof=1) * t.isf(0.025, freedom) / norm.isf(0.025)
    low, high = mean + (np.quantile(total, [0.025, 0.975]) - mean) * wider
    return float(low), float(high)


def list_comparisons(name: str, least: int = 2) -> str:
    """Returns a table of differences of rows with so many seeds. One that lacks seeds has no p, and counts as 1."""
    comparisons = [[parse_row(row) for row in rows] for rows in RECIPE["comparisons"][name]]
    aps = [[read_ap(row) for row in rows] for rows in comparisons]
    complete = [all(len(read_lines(row)) >= count_planned(row) for row in rows) for rows in comparisons]
    p = [compare_runs(*ap).p if done else 1.0 for ap, done in zip(aps, complete, strict=True)]
    lines = []
    for (a, b), ap, done, each, corrected in zip(comparisons, aps, complete, p, correct_holm(p), strict=True):
        if min(map(len, ap)) < least:
            continue
        so_far = "" if done else f" *(so far {len(ap[0])} and {len(ap[1])} seeds)*"
        star = "**" if corrected < 0.05 else ""
        of_p = [format_p(each), f"{star}{format_p(corrected)}{star}"] if done else ["", ""]
        interval = " to ".join(map(signed, find_interval(ap)))
        what = f"{a.start}, {a.set}: {title(a)} less {title(b, drawn=False)}{so_far}"
        lines.append([what, signed(ap[0].mean() - ap[1].mean()), interval, *of_p])
    text = table(["comparison", "MAP", "95% interval", "p", "corrected p"], lines)
    notes = [f"Omitted, with fewer than {least} seeds: {n} of {len(p)}."] if (n := len(p) - len(lines)) else []
    return "\n\n".join([text] * bool(lines) + notes)


def list_uncontaminated(name: str) -> str:
    """Returns a comparison without the questions whose right answer stands in the pre-training text."""
    rows = [parse_row(row) for row in RECIPE["comparisons"][name][0]]
    left_out = json.loads((FOLDER / "sets.json").read_text())[rows[0].set]["contaminated"]["answer"]
    ap = [read_ap(row) for row in rows]
    if any(len(of_row) < count_planned(row) for of_row, row in zip(ap, rows, strict=True)):
        return "Too few seeds yet."
    kept = [np.delete(of_row, left_out, axis=1) for of_row in ap]
    figures = [signed(x.mean() - y.mean()) for x, y in (ap, kept)]
    return table(["all", "without them", "p"], [[*figures, format_p(compare_runs(*kept).p)]])


def list_rows(start: str, sets: Sequence[str], least: int = 1) -> str:
    """Returns the test MAP of a start's rows with so many seeds on the first set; of the main starts after BM25's."""
    names = (path.stem.rpartition("-")[0] for path in (FOLDER / "lines").glob(f"{start}-*.jsonl"))
    rows = {parse_row(f"{name}-{sets[0]}") for name in names if "-wsd-" not in name and "-cosine-" not in name}
    arms = list(RECIPE["titles"])
    measured = (row for row in rows if row.questions in (0, 50))  # list_curve has the others
    ordered = sorted(measured, key=lambda row: (arms.index(row.arm), row.pairs, COUNTS.index(row.questions)))
    lines, untrained = [], (BM25, COSINE) if start in ("rampart", "minilm") else ()
    for row in (*untrained, *(row for row in ordered if len(read_lines(row)) >= least)):
        on = [Row(row.start, row.arm, row.pairs, row.questions, name) for name in sets]
        lines.append([title(row), *(cell for of_set in on for cell in format_cells(of_set))])
    return table(["", *(text for name in sets for text in (name, "updates"))], lines)


def list_curve(start: str, arms: Sequence[str]) -> str:
    """Returns the test MAP on SelQA over labelled questions."""
    rows = [[parse_row(f"{start}-{arm}-{count}-selqa") for count in COUNTS] for arm in arms]
    lines = [[title(row[0], drawn=False), *(format_cells(cell)[0] for cell in row)] for row in rows]
    return table(["labelled questions", *map(str, COUNTS)], lines)


def format_cells(row: Row) -> tuple[str, str]:
    """Returns the mean, deviation and number of seeds, and the mean number of updates."""
    lines, count = read_lines(row), count_planned(row)
    if not lines:
        return "", ""
    maps = read_ap(row).mean(axis=1)
    updates = [line["updates"] for line in lines if "updates" in line]
    deviation = f" ({short(maps.std(ddof=1))})" if len(maps) > 1 else ""
    seeds = "" if count == 1 else f" n={len(maps)}" + (f" of {count}" if len(maps) < count else "")
    return short(maps.mean()) + deviation + seeds, f"{np.mean(updates):.0f}" if updates else ""


def draw(path: Path) -> None:
    """Draws MAP on SelQA over labelled questions: a dot for each seed, and a line through the means of each dose."""
    from matplotlib.figure import Figure

    figure = Figure((9.5, 4.6), layout="constrained")
    starts = {"rampart": "an encoder that has seen no pairs: rampart", "minilm": "an embedding model: all-MiniLM-L6-v2"}
    for axes, start in zip(figure.subplots(1, 2, sharey=True), starts, strict=True):
        for number, curve in enumerate(CURVES):
            rows = [parse_row(f"{start}-{curve}-{count}-selqa") for count in COUNTS]
            maps = {place: read_ap(row).mean(axis=1) for place, row in enumerate(rows) if read_lines(row)}
            for place, of_seeds in maps.items():
                axes.plot([place] * len(of_seeds), of_seeds, "o", color=f"C{number}", markersize=3, alpha=0.6)
            label, means = title(rows[0], drawn=False) if maps else None, [values.mean() for values in maps.values()]
            axes.plot(list(maps), means, color=f"C{number}", label=label)
        for row, style in ((BM25, "--"), (COSINE, ":")):
            axes.axhline(read_ap(row).mean(), color="gray", linestyle=style, label=title(row))
        axes.set(title=f"from {starts[start]}", xlabel="labelled questions", ylim=(0.22, 0.92))
        axes.set_xticks(range(len(COUNTS)), ["none", *map(str, COUNTS[1:])])
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.axes[0].set_ylabel("MAP on SelQA's test questions")
    figure.savefig(path, dpi=130, metadata={"Software": None})  # the same figures give the same bytes


TABLES = {
    "primary": lambda: list_comparisons("primary"),
    "primary, uncontaminated": lambda: list_uncontaminated("primary"),
    "secondary": lambda: list_comparisons("secondary"),
    "rampart": lambda: list_rows("rampart", ("selqa", "wikiqa", "trecqa")),
    "rampart curve": lambda: list_curve("rampart", ("none-0", "ssp-51200")),
    "distilbert": lambda: list_rows("distilbert", ("selqa", "wikiqa")),
    "minilm primary": lambda: list_comparisons("minilm primary"),
    "minilm secondary": lambda: list_comparisons("minilm secondary", least=3),
    "minilm": lambda: list_rows("minilm", ("selqa", "wikiqa"), least=3),
    "minilm, other sets": lambda: list_rows("minilm", ("trecqa", "insuranceqa")),
    "scratch": lambda: list_rows("scratch", ("selqa", "wikiqa"), least=5),
}


def main() -> None:
    path = FOLDER.parent / "DOSE.md"
    place = re.compile(r"(<!-- (?P<name>[a-z][^>]*?) -->\n)(?:(?!<!--).)*(<!-- end -->)", re.S)
    page = path.read_text(encoding="utf-8")
    page = place.sub(lambda match: f"{match[1]}\n{TABLES[match['name']]()}\n\n{match[3]}", page)
    path.write_text(page, encoding="utf-8")
    draw(FOLDER / "labels.png")


if __name__ == "__main__":
    main()
