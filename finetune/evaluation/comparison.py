"""Compares systems that rank the same questions: a table with tests of significance, and the metrics by question."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .metrics import TITLES, Figures, compute_means
from .significance import compare_rows, compute_interval, format_p

START = "the start"  # name of the base model's row in tables


def compare_systems(systems: dict[str, Figures]) -> list[dict[str, Any]]:
    """Returns a row for each system: its ``name``, the mean of each metric, ``interval`` and ``against_first``.

    ``interval`` is the 95% interval of the first metric's mean. ``against_first`` has, by metric, what
    ``significance.compare_rows`` returns; None for the first system. systems: by name, each one's metrics
    """
    metrics = list(next(iter(systems.values())))
    tests = {key: compare_rows([f[key][None] for f in systems.values()]) for key in metrics}  # one run each
    return [
        {
            "name": name,
            **compute_means(figures),
            "interval": compute_interval(figures[metrics[0]]),
            "against_first": {metric: tests[metric][row] for metric in metrics} if row else None,
        }
        for row, (name, figures) in enumerate(systems.items())
    ]


def format_table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of means, with the first metric's 95% interval, and one of differences from the first system."""
    width = max(len(row["name"]) for row in rows)
    metrics = [key for key in rows[0] if key not in ("name", "interval", "against_first")]
    titles = {metric: f"{TITLES.get(metric, metric):>7}" for metric in metrics}
    interval = f"95% interval of {next(iter(titles.values())).strip()}"
    lines = [" " * width + "".join(f"  {title}" for title in (*titles.values(), interval))]
    for row in rows:
        figures = (f"  {row[metric]:{len(title)}.4f}" for metric, title in titles.items())
        low, high = row["interval"]
        lines.append(f"{row['name']:<{width}}{''.join(figures)}  {low:.4f} to {high:.4f}")
    others = [row for row in rows if row["against_first"]]
    if others:
        about = "p of the paired randomisation test over questions"
        if len(others) > 1:
            about += f", corrected by Holm's method for {len(others)} comparisons"
        lines += [
            "",
            f"against {rows[0]['name']}: difference ({about})",
            " " * width + "".join(f"  {title.strip():<22}" for title in titles.values()).rstrip(),
        ]
    for row in others:
        tests = [row["against_first"][metric] for metric in titles]
        cells = [f"{test['difference']:+.4f} ({format_p(test['corrected'])})" for test in tests]
        lines.append(f"{row['name']:<{width}}" + "".join(f"  {cell:<22}" for cell in cells).rstrip())
    return "\n".join(lines)


def format_mean(figure: Mapping[str, float | None]) -> str:
    """Returns a mean and, in brackets, the standard deviation over the seeds; or a dash if there is one seed."""
    deviation = "-" if figure["sd"] is None else f"{figure['sd']:.4f}"
    return f"{figure['mean']:.4f} ({deviation})"


def format_per_question(systems: dict[str, Figures], question_ids: Sequence[str]) -> str:
    """Returns the metrics of every question as CSV, with columns such as ``system, question_id, map, mrr``."""
    metrics = list(next(iter(systems.values())))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["system", "question_id", *metrics])
    for name, figures in systems.items():
        columns = [figures[metric].tolist() for metric in metrics]
        writer.writerows([name, *row] for row in zip(question_ids, *columns, strict=True))
    return text.getvalue()


def name_folders(names: Sequence[str]) -> list[str]:
    """Returns a folder name for each system: the last two parts of its path, after a number if two are equal."""
    paths = [name if Path(name).name and ".." not in Path(name).parts else os.path.abspath(name) for name in names]
    folders = [re.sub(r"[^\w.-]+", "_", "-".join(Path(path).parts[-2:])).strip("_") for path in paths]
    counts = Counter(map(str.casefold, folders))
    numbered = enumerate(folders, 1)
    return [folder if counts[folder.casefold()] == 1 else f"{number}-{folder}" for number, folder in numbered]
