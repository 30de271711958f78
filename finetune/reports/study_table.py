"""A study's results as tables for the screen, with the papers' figures beside ours."""

import textwrap
from collections.abc import Sequence
from typing import Any

from finetune.evaluation.metrics import MAP, METRICS, TITLES
from finetune.evaluation.significance import OVER_QUESTIONS, OVER_SEEDS, format_p

from .card import AS_STARTED, AS_TRANSFERRED

WIDTH = 120  # of the note below the tables


def format_study(results: dict[str, Any]) -> str:
    """Returns the tables of a study; ``results`` is what ``study.run_study`` returns."""
    lines = [f"\n{results['title']}" + (f" ({results['source']})" if results["source"] else "")]
    for table in results["tables"]:
        metrics = list(table.get("metrics", METRICS))
        width = max(len(row["name"]) for row in table["rows"]) + 2
        lines += [
            "",
            f"{table['data']}: {table['questions']:,} {table['split']} questions, {table['pairs']:,} candidates",
        ]
        tests = f"   p of {TITLES[metrics[0]]}: questions, seeds, corrected"
        lines.append(" " * width + "".join(f"{TITLES[m]:>18}" for m in metrics) + tests)
        for row in table["rows"]:
            cells = "".join(f"{format_cell(row[m]):>18}" for m in metrics)
            lines.append(f"{row['name']:<{width}}" + cells + _format_tests(row["p"]))
            if row.get("paper"):
                cells = "".join(f"{row['paper'][m]:.3f}".rjust(18) if m in row["paper"] else " " * 18 for m in metrics)
                lines.append(f"{'  paper':<{width}}{cells}".rstrip())
        if all("interval" in row for row in table["rows"]):
            lines += _describe_intervals(table, metrics[0])
        lines += _describe_unseen(table, metrics, width)
        num_tests = sum(row["p"] is not None for row in table["rows"])
        if num_tests > 1:
            lines.append(f"corrected is the greater p, by Holm's method for {num_tests} rows compared with the first")
        if any(row.get("seeds") == 1 for row in table["rows"]):
            lines.append("a row of one seed says nothing of how other seeds would do")
        lines += [
            f"{row['name']}: its {row['seeds']} seeds have the same figures, and count as one"
            for row in table["rows"]
            if row.get("seeds", 1) > 1 and row[metrics[0]]["sd"] is None
        ]
        lines += [table["bm25"]] if table.get("bm25") else []
        lines += [describe_shared_stages(row["name"]) for row in table["rows"] if row.get("shares_stages")]
        lines += [*_describe_drops(table), *_describe_unimproved(table)]
        lines.append(f"page: {table['report']}")
    if results["about"]:
        lines += ["", *textwrap.wrap(results["about"], WIDTH)]
    return "\n".join(lines)


def format_cell(figure: dict[str, float | None]) -> str:
    """Returns a mean and, in brackets, the standard deviation over the seeds; a dash where there is one seed."""
    deviation = "-" if figure["sd"] is None else f"{figure['sd']:.4f}"
    return f"{figure['mean']:.4f} ({deviation})"


def _format_tests(test: dict[str, Any] | None) -> str:
    """Returns the difference from the first row, p over questions and over seeds, and the corrected p."""
    if test is None:
        return ""
    shown = [format_p(test[name]) if name in test else "-" for name in (OVER_QUESTIONS, OVER_SEEDS, "corrected")]
    return f"   {test['difference']:+.4f}: {', '.join(shown)}"


def _describe_intervals(table: dict[str, Any], metric: str) -> list[str]:
    """The 95% intervals over questions, of the means over seeds."""
    cells = [f"{row['name']} {row['interval'][0]:.3f} to {row['interval'][1]:.3f}" for row in table["rows"]]
    return textwrap.wrap(f"95% intervals of {TITLES[metric]} over questions: {'; '.join(cells)}", WIDTH)


def _describe_unseen(table: dict[str, Any], metrics: Sequence[str], width: int) -> list[str]:
    """The figures of the questions whose right answers are right for no question of train or dev, where some are."""
    count, rows = table.get("unseen_questions"), [row for row in table["rows"] if row.get("unseen")]
    if not count or not rows:
        return []
    left = table["questions"] - count
    lines = [f"without the {left:,} questions that share a right answer with train or dev ({count:,} are left):"]
    for row in rows:
        cells = "".join(f"{format_cell(row['unseen'][m]):>18}" for m in metrics)
        lines.append(f"{row['name']:<{width}}{cells}")
    return lines


def _describe_drops(table: dict[str, Any]) -> list[str]:
    """Says by how much MAP drops where labels are flipped, against the same settings without (TANDA, table 5)."""
    by_name = {row["name"]: row for row in table["rows"]}
    lines = []
    for row in table["rows"]:
        base = by_name.get(row.get("clean"))
        if base and base[MAP]["mean"]:
            drop = 100 * (1 - row[MAP]["mean"] / base[MAP]["mean"])
            theirs = ""
            if MAP in row["paper"] and MAP in base["paper"]:
                theirs = f" (paper: {100 * (1 - row['paper'][MAP] / base['paper'][MAP]):.2f}%)"
            lines.append(f"{row['name']}: MAP drops by {drop:.2f}%{theirs}")
    return lines


def describe_shared_stages(name: str) -> str:
    """Says what the seeds of a row do not show whose training before fine-tuning ran once for all of them."""
    return (
        f"{name}: what came before fine-tuning ran once for all seeds, which do not say how another run would do: "
        "no star (--repeat_stages)"
    )


def _describe_unimproved(table: dict[str, Any]) -> list[str]:
    """Says for how many seeds the best ranker on the dev set is the one that the last training began with."""
    return [
        f"{row['name']}: {row[kind]} of {row['seeds']} seeds: {what}"
        for kind, what in (("as_transferred", AS_TRANSFERRED), ("as_started", AS_STARTED))
        for row in table["rows"]
        if row.get(kind)
    ]
