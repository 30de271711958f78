"""Fills the tables of benchmarks/DOSE.md, and draws its figure, from the lines of benchmarks/dose/lines.

    python benchmarks/dose/tables.py

A table stands in the page between `<!-- NAME -->` and `<!-- end -->`. A test waits until all
seeds of its rows have run.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.dose import run as recipe
from benchmarks.dose.run import ALL, FEW, HUGE, LARGE, PAIRS, Row, pair_of
from finetune.evaluation.significance import compare, compare_seeds, correct_greater, format_p

FOLDER, PAGE = ROOT / "benchmarks" / "dose", ROOT / "benchmarks" / "DOSE.md"
SETS = ("selqa", "wikiqa", "trecqa", "insuranceqa")
ASSIGNMENTS, DRAWS = 100_000, 10_000  # of random signs, and of the bootstrap
TITLES = {
    "none": "no continued pre-training",
    "ssp": "MLM + SSP",
    "mlm": "MLM alone",
    "gpu": "MLM + SSP, in large batches",
    "titles": "MLM + titles and first sentences",
    "all": "MLM + SSP, SP and PSD",
    "bi": "bi-encoder",
    "bi-ssp": "bi-encoder after MLM + SSP",
    "ssp-fresh": "MLM + SSP, head redrawn",
    "ssp-wsd": "MLM + SSP, wsd",
    "ssp-cosine": "MLM + SSP, by the cosine",
    "permuted": "MLM + SSP with permuted labels",
    "easy": "MLM + SSP, without hard negatives",
    "cosine": "cosine of all-MiniLM-L6-v2",
}
STARTS = {"bm25": "BM25 (all words, stemmed)", "l3": "paraphrase-MiniLM-L3-v2", "scratch": "trained from scratch"}

# The study of all-MiniLM-L6-v2: its comparisons, of ten seeds in the first three rows and of five or three in others.
MINILM = pair_of("minilm", FEW, "selqa")
MINILM_SECONDARY = [
    pair_of("minilm", FEW, "wikiqa"),
    *([MINILM[0], Row("minilm", arm, PAIRS, FEW, "selqa")] for arm in ("mlm", "permuted", "easy", "titles")),
    [Row("minilm", "all", PAIRS, FEW, "selqa"), MINILM[0]],
    [Row("minilm", "ssp-fresh", PAIRS, FEW, "selqa"), MINILM[1]],
    pair_of("minilm", ALL, "selqa"),
    [Row("minilm", "ssp", LARGE, FEW, "selqa"), MINILM[0]],
]
PLANNED: dict[Row, int] = {}  # seeds of each row
for _row, _seed in recipe.list_jobs():
    PLANNED[_row] = max(_seed, PLANNED.get(_row, 0))
PLANNED |= {row: 10 for name in ("selqa", "wikiqa") for row in pair_of("minilm", FEW, name)}


def read_lines(row: Row) -> list[dict[str, Any]]:
    """Returns the lines of a row by seed."""
    return sorted(recipe.read_lines(FOLDER / "lines" / f"{row.name}.jsonl"), key=lambda line: line["seed"])


def read_ap(row: Row) -> np.ndarray:
    """Returns the average precision of each seed and question, ``[S, Q]``; empty where none has run."""
    return np.array([line["ap"] for line in read_lines(row)])


def count_planned(row: Row) -> int:
    """Returns how many seeds a row is to have."""
    return PLANNED.get(row, 1 if row.start == "bm25" or row.arm == "cosine" else 3 if _is_large(row) else 5)


def _is_large(row: Row) -> bool:
    return (row.pairs == LARGE and row.start != "scratch") or row.start == "l3" or row.arm == "ssp-wsd"


def name(row: Row, drawn: bool = True) -> str:
    """Returns a row's title."""
    pairs = f", {row.pairs:,} pairs" if row.pairs not in (0, PAIRS) else ""
    questions = f", {row.questions} questions" if row.questions else ", no labels"
    return TITLES[row.arm] + pairs + (questions if drawn else "")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def short(value: float) -> str:
    """Returns a figure from 0 to 1 with three decimals and no leading zero."""
    return f"{value:.3f}".removeprefix("0")


def signed(value: float) -> str:
    """Returns a difference with its sign."""
    return ("-" if round(value, 3) < 0 else "+") + short(abs(value))


# Comparisons --------------------------------------------------------------------------------------------------------


def find_interval(rows: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the 95% interval of the difference of two rows, each ``[S, Q]``, over questions and seeds together.

    A bootstrap draws questions, and of each row seeds, stretched since the mean of S drawn values varies too little by
    (S - 1) / S (Davison and Hinkley, 1997, section 3.8). The width is that of the standard error, in which what seeds
    change in single questions counts once (Owen, 2007), and of Student's t by Satterthwaite's degrees of freedom.
    """
    from scipy.stats import norm, t

    random, total, error = np.random.default_rng(0), np.zeros(DRAWS), 0.0
    difference = rows[0].mean(axis=0) - rows[1].mean(axis=0)
    questions = len(difference)
    asked = random.multinomial(questions, np.full(questions, 1 / questions), size=DRAWS) / questions
    parts = [(difference.var(ddof=1) / questions, questions - 1)]
    for sign, row in zip((1, -1), rows, strict=True):
        count = len(row)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
        stretch = np.sqrt(count / (count - 1)) if count > 1 else 0.0
        total += sign * np.einsum("ds,ds->d", 1 / count + stretch * (drawn - 1 / count), asked @ row.T)
        if count > 1:
            parts.append((row.mean(axis=1).var(ddof=1) / count, count - 1))
            left = row - row.mean(axis=1, keepdims=True) - row.mean(axis=0) + row.mean()
            error -= (left**2).sum() / ((count - 1) * (questions - 1)) / row.size
    seeds = sum(variance for variance, _ in parts[1:])
    error = np.sqrt(max(parts[0][0] + seeds + error, parts[0][0], seeds))
    freedom = (parts[0][0] + seeds) ** 2 / sum(variance**2 / count for variance, count in parts)
    wider = error / total.std(ddof=1) * t.isf(0.025, freedom) / norm.isf(0.025)
    low, high = difference.mean() + (np.quantile(total, [0.025, 0.975]) - difference.mean()) * wider
    return float(low), float(high)


def test(rows: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns p over questions, by the randomisation test, and over seeds, by Welch's."""
    difference = (rows[0].mean(axis=0) - rows[1].mean(axis=0)).astype(np.float64)
    over_questions = compare(difference, np.zeros_like(difference), draws=ASSIGNMENTS).over_questions
    return over_questions, compare_seeds(rows[0].mean(axis=1), rows[1].mean(axis=1))


def list_comparisons(comparisons: Sequence[Sequence[Row]]) -> str:
    """Returns a table of differences. p of one that lacks seeds is left out, and counts as 1 in the correction."""
    found = [[read_ap(row) for row in rows] for rows in comparisons]
    complete = [all(len(read_ap(row)) >= count_planned(row) for row in rows) for rows in comparisons]
    p = [test(ap) if done else (1.0,) for ap, done in zip(found, complete, strict=True)]
    lines = []
    for rows, ap, done, each, corrected in zip(comparisons, found, complete, p, correct_greater(p), strict=True):
        title = f"{rows[0].start}, {rows[0].set}: {name(rows[0])} less {name(rows[1], False)}"
        if min(map(len, ap)) < 2:
            lines.append([title, "not run yet", "", "", "", ""])
            continue
        if not done:
            title += f" *(so far {' and '.join(str(len(one)) for one in ap)} seeds)*"
        of_p = [*map(format_p, (*each, corrected))] if done else ["", "", ""]
        if done and corrected < 0.05:
            of_p[2] = f"**{of_p[2]}**"
        interval = " to ".join(map(signed, find_interval(ap)))
        lines.append([title, signed(ap[0].mean() - ap[1].mean()), interval, *of_p])
    return format_table(["comparison", "MAP", "95% interval", "p over questions", "p over seeds", "corrected p"], lines)


def list_uncontaminated(comparison: Sequence[Row]) -> str:
    """Returns a comparison without the questions whose right answer stands in the pre-training text."""
    left_out = json.loads((FOLDER / "sets.json").read_text())[comparison[0].set]["contaminated"]["answer"]
    ap = [read_ap(row) for row in comparison]
    if min(map(len, ap)) < 2:
        return "Not run yet."
    kept = [np.delete(one, left_out, axis=1) for one in ap]
    figures = [signed(x.mean() - y.mean()) for x, y in (ap, kept)]
    header = ["comparison", "all", "without them", "p over questions", "p over seeds"]
    return format_table(
        header, [[f"{name(comparison[0])} less {name(comparison[1], False)}", *figures, *map(format_p, test(kept))]]
    )


# Rows ---------------------------------------------------------------------------------------------------------------


def find_rows(start: str) -> list[Row]:
    """Returns the rows of a start that have run, on any set, and BM25 and the embedding model's cosine above them."""
    rows = [Row("bm25", "none", 0, 0, "selqa"), Row("minilm", "cosine", 0, 0, "selqa")]
    for path in (FOLDER / "lines").glob(f"{start}-*.jsonl"):
        _, arm, pairs, questions, set_name = re.fullmatch(r"(\w+)-(.+)-(\d+)-(\w+)-(\w+)", path.stem).groups()  # type: ignore[union-attr]
        rows.append(Row(start, arm, int(pairs), questions if questions == ALL else int(questions), set_name))
    arms = list(TITLES)
    return sorted(
        dict.fromkeys(rows),
        key=lambda r: (
            r.start != "bm25",
            r.arm != "cosine",
            arms.index(r.arm),
            r.pairs,
            1e9 if r.questions == ALL else r.questions,
        ),
    )


def list_rows(start: str, sets: Sequence[str]) -> str:
    """Returns the test MAP of a start's rows, and after how many updates they had their dev peak."""
    lines: dict[str, list[str]] = {}
    for row in find_rows(start):
        title = STARTS["bm25"] if row.start == "bm25" else TITLES["cosine"] if row.arm == "cosine" else name(row)
        if title not in lines:
            cells = [cell for of in sets for cell in _say(Row(row.start, row.arm, row.pairs, row.questions, of))]
            if any(cells):
                lines[title] = [title, *cells]
    header = [text for of in sets for text in (f"seeds, {of}", of, f"updates, {of}")]
    return format_table(["", *header], list(lines.values()))


def _say(row: Row) -> list[str]:
    lines, ap = read_lines(row), read_ap(row)
    if not lines:
        return ["", "", ""]
    maps = ap.mean(axis=1)
    of = "" if len(lines) >= count_planned(row) else f" of {count_planned(row)}"
    updates = [line["updates"] for line in lines if "updates" in line]
    deviation = f" ({short(maps.std(ddof=1))})" if len(maps) > 1 else ""
    is_measured = row.start == "bm25" or row.arm == "cosine"
    seeds = "" if is_measured else f"{len(lines)}{of}"
    return [seeds, short(maps.mean()) + deviation, f"{np.mean(updates):.0f}" if updates else ""]


def list_pretrainings() -> str:
    """Returns what each pre-training came to on held-out pairs."""
    made: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for start in ("rampart", "distilbert", "minilm", "l3", "scratch"):
        for row in find_rows(start):
            for line in read_lines(row):
                if line.get("auc") is not None:
                    made.setdefault((start, name(row, False)), {})[line["seed"]] = line
    rows = [
        [
            f"{start}: {title}",
            str(len(lines)),
            f"{np.mean([x['tokens'] for x in lines.values()]) / 1e6:.2f} M",
            short(np.mean([x["auc"] for x in lines.values()])),
        ]
        for (start, title), lines in made.items()
    ]
    return format_table(["pre-training", "seeds", "tokens", "AUC of held-out pairs"], rows)


# Figure and page ----------------------------------------------------------------------------------------------------


def draw(path: Path) -> None:
    """Draws MAP on SelQA over labelled questions: a dot for each seed, and a line through the means of each dose."""
    from matplotlib.figure import Figure

    figure = Figure((9.5, 3.8), layout="constrained")
    places: dict[int | str, float] = {0: 12.5, ALL: 1017}
    for axes, start in zip(figure.subplots(1, 2, sharey=True), ("rampart", "minilm"), strict=True):
        curves = [
            ("none", 0),
            ("ssp", 12_800),
            ("ssp", PAIRS),
            ("ssp", LARGE),
            ("gpu", HUGE),
            ("bi", 0),
            ("bi-ssp", PAIRS),
        ]
        for number, (arm, pairs) in enumerate(curves):
            rows = [Row(start, arm, pairs, count, "selqa") for count in (0, 25, FEW, 100, 200, 400, ALL)]
            points = [
                (places.get(row.questions, row.questions), read_ap(row).mean(axis=1)) for row in rows if read_lines(row)
            ]
            for place, maps in points:
                axes.plot([place] * len(maps), maps, "o", color=f"C{number}", markersize=3, alpha=0.6)
            label = TITLES[arm] if arm != "ssp" else name(rows[0], False)
            if points:
                axes.plot([x for x, _ in points], [maps.mean() for _, maps in points], color=f"C{number}", label=label)
        for row, style in ((Row("bm25", "none", 0, 0, "selqa"), "--"), (Row("minilm", "cosine", 0, 0, "selqa"), ":")):
            axes.axhline(
                read_ap(row).mean(),
                color="gray",
                linestyle=style,
                label=STARTS["bm25"][:4] if row.start == "bm25" else TITLES["cosine"],
            )
        axes.set(
            xscale="log",
            title=f"from {'rampart' if start == 'rampart' else 'all-MiniLM-L6-v2'}",
            xlabel="labelled questions",
        )
        axes.set_xticks([12.5, 25, 50, 100, 200, 400, 1017], ["none", "25", "50", "100", "200", "400", "all"])
        axes.minorticks_off()
        axes.legend(fontsize=7, loc="lower right")
    figure.axes[0].set_ylabel("MAP on SelQA's test questions")
    figure.savefig(path, dpi=130, metadata={"Software": None})  # the same figures give the same bytes


TABLES = {
    "primary": lambda: list_comparisons([recipe.PRIMARY]),
    "primary, uncontaminated": lambda: list_uncontaminated(recipe.PRIMARY),
    "secondary": lambda: list_comparisons(recipe.SECONDARY),
    "rampart": lambda: list_rows("rampart", SETS[:3]),
    "distilbert": lambda: list_rows("distilbert", SETS[:2]),
    "minilm primary": lambda: list_comparisons([MINILM]),
    "minilm primary, uncontaminated": lambda: list_uncontaminated(MINILM),
    "minilm secondary": lambda: list_comparisons(MINILM_SECONDARY),
    "minilm": lambda: list_rows("minilm", SETS[:2]),
    "minilm, other sets": lambda: list_rows("minilm", SETS[2:]),
    "l3": lambda: list_rows("l3", SETS[:1]),
    "scratch": lambda: list_rows("scratch", SETS[:2]),
    "pre-trainings": list_pretrainings,
}


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    place = re.compile(r"(<!-- (?P<name>[a-z][^>]*?) -->\n)(?:(?!<!--).)*(<!-- end -->)", re.S)
    page = place.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[3]}", page)
    PAGE.write_text(page, encoding="utf-8")
    draw(FOLDER / "labels.png")


if __name__ == "__main__":
    main()
