"""The figures of the page, as PNG: differences with their intervals, and curves over tokens and over labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.reports.plots import COLOURS, MARKERS, compute_deviation

from .statistics import Contrast

FIGURES = Path(__file__).with_name("figures")
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


def draw_forest(path: Path, panels: Mapping[str, Sequence[tuple[str, Contrast]]]) -> None:
    """Draws a panel for each title, with a line for each difference: the value and its interval.

    Those that are shown beyond chance, over questions and seeds and with all comparisons counted, are filled.
    """
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
        _save(figure, path)


def draw_curves(
    path: Path, curves: Mapping[str, Mapping[float, np.ndarray]], label: str, ticks: Mapping[float, str]
) -> None:
    """Draws MAP over a quantity, a curve for each arm: means, with a bar of one standard deviation over seeds.

    curves: arm -> quantity -> MAP of each seed
    ticks:  what the axis calls each quantity; the axis is logarithmic
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure((0.66 * WIDTH, 3.1))
        axes: Axes = figure.subplots()
        for (name, points), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
            means, bars = [v.mean() for v in points.values()], [compute_deviation(v) for v in points.values()]
            line = "-" if len(points) > 1 else ""
            axes.errorbar(list(points), means, bars, color=colour, marker=marker, capsize=4, linestyle=line, label=name)
        axes.set_xscale("log")
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_xlabel(label)
        axes.set_ylabel("MAP of the test set")
        axes.legend()
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})  # the same figures give the same bytes
