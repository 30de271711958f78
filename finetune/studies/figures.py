"""The figures of a study's page, as PNG: differences with their intervals, and curves over labelled questions."""

from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.evaluation.contrasts import Contrast
from finetune.reports.plots import COLOURS, MARKERS

from .findings import Findings
from .matrix import name_training
from .tables import part_patterns

WIDTH = 8.6  # inches
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "text.parse_math": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 130,
}


def draw_forest(found: Findings, path: Path) -> None:
    """Draws a panel for each start and set, with a line for each difference: the value and its interval.

    Those that are shown beyond chance, over questions and seeds and with all comparisons counted, are filled.
    """
    panels: dict[str, list[tuple[str, Contrast]]] = {}
    for finding in found.findings:
        if finding.contrast and len(finding.rows) == 2:
            row = finding.rows[0]
            on = (found.content["sets"][row.set] or {}).get("title", row.set)
            panels.setdefault(f"start ({row.start}), {on}", []).append((finding.label, finding.contrast))
    if not panels:
        return
    heights = [len(lines) + 1.2 for lines in panels.values()]
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, 0.5 + 0.28 * sum(heights)))
        grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            axes.set_title(title, loc="left", fontsize=10)
            axes.axvline(0, color="black", linewidth=0.8)
            for y, (_, contrast) in enumerate(lines):
                axes.plot([contrast.low, contrast.high], [y, y], color=COLOURS[0], linewidth=1.6)
                fill = COLOURS[0] if contrast.is_shown else "white"
                axes.plot(contrast.difference, y, "o", color=COLOURS[0], markerfacecolor=fill, markersize=6)
            axes.set_yticks(range(len(lines)), [name for name, _ in lines])
            axes.set_ylim(len(lines) - 0.4, -0.6)
            axes.grid(visible=False, axis="y")
        grid[-1].set_xlabel("difference of MAP, with its 95% interval")
        save_figure(figure, path)


def draw_curves(found: Findings, path: Path, rows: str, level: str = "") -> None:
    """Draws MAP over the number of labelled questions: a dot for each seed, and a curve through the means of each arm.

    rows:  patterns of names, parted by ``;``. Those that rank by the pair head as it was trained stand at no question
    level: of what needs no training, each a horizontal line
    """
    curves: dict[str, dict[int, np.ndarray]] = {}
    for outcome in found.select(part_patterns(rows)):
        row = outcome.row
        curves.setdefault(name_training(row), {})[row.questions or 0] = outcome.maps
    counts = sorted({count for points in curves.values() for count in points})
    if not any(counts):
        return
    none = min(filter(None, counts)) / 2  # where no question stands on the axis
    ticks = {count or none: f"{count:,}" if count else "none" for count in counts}
    with matplotlib.rc_context(STYLE):
        figure = Figure((0.75 * WIDTH, 3.6))
        axes: Axes = figure.subplots()
        for (name, points), colour, marker in zip(curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
            places = {count or none: maps for count, maps in sorted(points.items())}
            axes.plot(list(places), [maps.mean() for maps in places.values()], color=colour, linewidth=1.6, label=name)
            for place, maps in places.items():
                axes.plot(np.full(len(maps), place), maps, marker, color=colour, markersize=3.5, alpha=0.6)
        for outcome, style in zip(found.select(part_patterns(level)), cycle(("--", ":", "-.")), strict=False):
            axes.axhline(outcome.maps.mean(), color="gray", linestyle=style, linewidth=1.2, label=outcome.row.title)
        axes.set_xscale("log")
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_xlabel("labelled questions")
        axes.set_ylabel("MAP of the test set")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})  # the same figures give the same bytes
