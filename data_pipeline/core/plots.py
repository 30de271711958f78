"""Draws plots as SVG inside a page of HTML.

Text and axes take the page's colour, and the background is the page's, so that a plot suits a light and a dark page.
The page's style sheet gives the font.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

# Legible on white and on black
COLOURS = ("#4a90d9", "#e0852f", "#3fa66a", "#b06fc4", "#d0555c", "#8a8f98", "#26a6a6", "#b99a2e")
FEW_POINTS = 30  # of a curve, each of which then has a dot
SMALL = (4.6, 2.1)  # inches, of one of several plots side by side
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figures give the same bytes
_INK = "#123456"  # stands for the page's own colour until the SVG is written
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kinspan",
    "text.parse_math": False,  # a name may have a dollar sign
    "font.size": 10,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}

# Fixed margins: finding them takes longer than all else.
SMALL_STYLE = STYLE | {
    "figure.constrained_layout.use": False,
    "figure.subplot.left": 0.15,
    "figure.subplot.right": 0.97,
    "figure.subplot.bottom": 0.2,
    "figure.subplot.top": 0.95,
}

Points = Sequence[tuple[float, float]]  # steps, and the values then


def draw_curves(axes: Axes, curves: Mapping[str, Points]) -> None:
    """Draws named curves over the number of updates."""
    for (name, points), colour in zip(curves.items(), cycle(COLOURS)):
        marker = "o" if len(points) < FEW_POINTS else None
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            marker=marker,
            markersize=3,
            linewidth=1.4,
            label=name,
            clip_on=False,  # a dot at 0 stands on the axis
        )
    axes.set_xlim(0, 1.02 * max(1, *(step for points in curves.values() for step, _ in points)))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("updates")


def plot_curves(
    curves: Mapping[str, Points], label: str, marks: Sequence[float] = (), scale: tuple[float, float] | None = None
) -> str:
    """Plots named curves over the number of updates.

    label: says what the plot shows to those who cannot see it
    marks: updates at which there is a dashed line
    scale: values that are shown at least
    """
    with matplotlib.rc_context(SMALL_STYLE):
        figure = Figure(SMALL)
        axes = figure.subplots()
        draw_curves(axes, curves)
        low, high = axes.get_ylim()
        if scale:
            axes.set_ylim(min(low, scale[0]), max(high, scale[1]))
        for mark in marks:
            axes.axvline(mark, color=_INK, alpha=0.45, linewidth=1, linestyle="--")
        names = " ".join(f'<span style="color:{c}">\u25cf</span> {escape(n)}' for n, c in zip(curves, cycle(COLOURS)))
        return f'{render_figure(figure, label)}<div class="muted">{names}</div>'


def render_figure(figure: Figure, label: str) -> str:
    """Returns the plot as an element of HTML; ``label`` says what it shows to those who cannot see it."""
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font by which texts are measured lacks some characters
        figure.savefig(out, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")  # HTML takes no XML prologue
    return f'<div role="img" aria-label="{escape(label)}">{svg}</div>'
