"""The figures of a study's page, as PNG: differences with their intervals, and curves over labels or doses."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.evaluation.contrasts import Contrast
from finetune.reports.plots import COLOURS, MARKERS, compute_deviation

from .findings import Findings
from .lines import RowOutcome
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


def draw_curves(found: Findings, path: Path, rows: str, over: str, label: str) -> None:
    """Draws MAP over a quantity, a curve for each arm: means, with a bar of one standard deviation over seeds.

    rows: patterns of names, parted by ``;``; of these the complete ones
    over: ``share`` or ``questions`` of training, or a setting of the pre-training, such as ``max_steps``
    """
    curves: dict[str, dict[float, np.ndarray]] = {}
    for outcome in found.select(part_patterns(rows)):
        quantity = _find_quantity(outcome, over)
        if outcome.is_complete and quantity:
            arm = found.content["arms"][outcome.row.arm.partition(", ")[0]]["title"]
            curves.setdefault(arm, {})[quantity] = outcome.maps
    if not any(len(points) > 1 for points in curves.values()):
        return
    curves = {arm: dict(sorted(points.items())) for arm, points in curves.items()}
    known = sorted({quantity for points in curves.values() for quantity in points})
    ticks = {quantity: f"{quantity:.0%}" if over == "share" else f"{quantity:,g}" for quantity in known}
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
        save_figure(figure, path)


def _find_quantity(outcome: RowOutcome, over: str) -> float | None:
    return getattr(outcome.row, over) if over in ("share", "questions") else (outcome.row.pretrain or {}).get(over)


def save_figure(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})  # the same figures give the same bytes
