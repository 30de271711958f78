"""Plots as SVG inside a page of HTML.

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
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

COLOURS = ("#4a90d9", "#e0852f", "#3fa66a", "#b06fc4", "#d0555c", "#8a8f98", "#26a6a6", "#b99a2e")  # on white and black
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same figures give the same bytes
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_INK = "#123456"  # stands for the page's own colour until the SVG is written
_STYLE: dict[Any, Any] = {
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
WIDTH = 9.4  # inches; a page shows it as wide as it has room
MOST_SHARE = 0.99  # of the values that a histogram shows: a long tail would leave no room for the rest


def plot_dots(
    names: Sequence[str],
    values: Sequence[np.ndarray],
    marks: Sequence[float | None],
    label: str,
    mark_label: str,
) -> str:
    """A row a name: its mean with a bar of a standard deviation to either side, its values, and a mark if it has one.

    values: of each name ``[S]``
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((WIDTH, 0.8 + 0.42 * len(names)))
        axes = figure.subplots()
        for y, (of_name, mark) in enumerate(zip(values, marks, strict=True)):
            axes.plot(of_name.mean(), y, "o", color=COLOURS[0], markersize=6)
            if len(of_name) > 1:
                axes.errorbar(of_name.mean(), y, xerr=compute_deviation(of_name), color=COLOURS[0], capsize=4)
                axes.plot(of_name, np.full(len(of_name), y + 0.25), "o", color=COLOURS[0], alpha=0.5, markersize=3.5)
            if mark is not None:
                axes.plot(mark, y - 0.25, "D", color=COLOURS[1], fillstyle="none", markersize=5)
        if any(mark is not None for mark in marks):
            axes.plot([], [], "D", color=COLOURS[1], fillstyle="none", markersize=5, linestyle="none", label=mark_label)
            figure.legend(loc="outside upper right")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)
        return _render(figure, f"{label} of {len(names)} rows")


def plot_curves(rows: Mapping[str, Mapping[str, Sequence[np.ndarray]]]) -> str:
    """A line of panels for each row: of each quantity a panel, with a line for each seed.

    rows: name -> quantity -> of each seed its values at each validation, ``[E]``. A quantity that a row
          lacks leaves its panel out. Panels of one quantity have one scale.
    """
    quantities = list(dict.fromkeys(quantity for row in rows.values() for quantity in row))
    with matplotlib.rc_context(_STYLE):
        figure = Figure((WIDTH, 0.4 + 2.1 * len(rows)))
        grid = figure.subplots(len(rows), len(quantities), squeeze=False, sharey="col", sharex="row")
        for line, (name, row) in zip(grid, rows.items(), strict=True):
            for axes, quantity in zip(line, quantities, strict=True):
                if quantity not in row:
                    axes.set_axis_off()
                    continue
                axes.set_title(f"{name if axes is line[0] else ''}\n{quantity}")  # names run on to the right
                for seed, (values, colour) in enumerate(zip(row[quantity], cycle(COLOURS)), 1):
                    axes.plot(
                        np.arange(1, len(values) + 1),
                        values,
                        "-o",
                        color=colour,
                        markersize=3,
                        linewidth=1.3,
                        label=f"run {seed}",
                    )
                axes.tick_params(labelleft=True)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in grid[-1]:
            axes.set_xlabel("validation")
        return _render(figure, "training curves")


def plot_noise(methods: Mapping[str, tuple[Sequence[float], Sequence[np.ndarray]]], label: str) -> str:
    """A line a method: means, and bars of a standard deviation, against the share of labels that were flipped.

    methods: name -> shares ``[K]``, and of each share the values of its seeds, ``[S]``
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((0.65 * WIDTH, 3.2))
        axes = figure.subplots()
        for (name, (shares, values)), colour, marker in zip(methods.items(), cycle(COLOURS), cycle(MARKERS)):
            means, bars = [v.mean() for v in values], [compute_deviation(v) for v in values]
            axes.errorbar(shares, means, bars, color=colour, marker=marker, capsize=4, label=name)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xticks(sorted({share for shares, _ in methods.values() for share in shares}))
        axes.set_xlabel("labels flipped in training")
        axes.set_ylabel(label)
        axes.legend()
        return _render(figure, f"{label} by noise")


def plot_histograms(panels: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """A panel each: how whole numbers are spread, as shares, with a line a split.

    panels: title -> split -> values
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((WIDTH, 2.9))
        line = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, splits) in zip(line, panels.items(), strict=True):
            _histogram(axes, splits)
            axes.set_title(title)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.legend(*line[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(COLOURS))
        return _render(figure, "; ".join(panels))


def _histogram(axes: Axes, splits: Mapping[str, np.ndarray]) -> None:
    most = max(float(np.quantile(values, MOST_SHARE)) for values in splits.values())
    width = max(1, round(most / 24))
    edges = np.arange(0, most + 2 * width, width) - 0.5
    for (split, values), colour in zip(splits.items(), cycle(COLOURS)):
        counts, _ = np.histogram(np.minimum(values, edges[-1] - 0.5), edges)
        axes.stairs(counts / len(values), edges, color=colour, linewidth=1.5, label=split)
    axes.set_xlim(max(0.0, edges[0]), edges[-1])


def compute_deviation(values: np.ndarray) -> float:
    """The standard deviation of the sample, as the papers give it; 0 of one value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _render(figure: Figure, label: str) -> str:
    """Returns the plot as an element of HTML; ``label`` says what it shows to those who cannot see it."""
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font by which texts are measured lacks some characters
        figure.savefig(out, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")  # HTML takes no XML prologue
    return f'<div role="img" aria-label="{escape(label)}">{svg}</div>'
