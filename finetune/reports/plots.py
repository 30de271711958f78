"""The plots of experiments and studies."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from data_pipeline.core.plots import COLOURS, MARKERS, STYLE, render_figure

WIDTH = 9.4  # inches; a page with less room shows the plot smaller
LEAST_RANGE = 0.1  # of an axis of MAP: a narrower one would make a landscape of chance
SHOWN_SHARE = 0.99  # of the values: a histogram that showed a long tail would have no room for the rest


Curve = tuple[np.ndarray, np.ndarray]  # how many updates were made, [E], and the values then, [E]


def plot_dots(
    names: Sequence[str],
    values: Sequence[np.ndarray],
    marks: Sequence[float | None],
    label: str,
    mark_label: str,
) -> str:
    """Plots one row per name: the mean with a bar of one standard deviation to either side, the values, and a mark.

    values: of each name, ``[S]``
    marks:  of each name, a value to mark, such as the paper's, or None
    """
    with matplotlib.rc_context(STYLE):
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
        axes.set_xlim(_widen(*axes.get_xlim()))
        return render_figure(figure, f"{label} of {len(names)} rows")


def plot_trainings(rows: Mapping[str, Mapping[str, Sequence[Curve]]]) -> str:
    """Plots a line of panels for each row, with one panel per quantity and one curve per seed.

    rows: name -> quantity -> the curve of each seed. Where a row lacks a quantity, the panel is left out. Panels of the
          same quantity share their scale.
    """
    quantities = list(dict.fromkeys(quantity for row in rows.values() for quantity in row))
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, 0.4 + 2.1 * len(rows)))
        grid = figure.subplots(len(rows), len(quantities), squeeze=False, sharey="col", sharex="row")
        for line, (name, row) in zip(grid, rows.items(), strict=True):
            for axes, quantity in zip(line, quantities, strict=True):
                if quantity not in row:
                    axes.set_axis_off()
                    continue
                axes.set_title(f"{name if axes is line[0] else ''}\n{quantity}")  # long names run on to the right
                for (steps, values), colour in zip(row[quantity], cycle(COLOURS)):
                    axes.plot(steps, values, "-o", color=colour, markersize=3, linewidth=1.3)
                axes.tick_params(labelleft=True)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes, quantity in zip(grid[-1], quantities, strict=True):
            axes.set_xlabel("updates")
            if quantity.startswith("MAP"):
                axes.set_ylim(_widen(*axes.get_ylim()))  # of the whole column, which shares its scale
        return render_figure(figure, "training curves")


def plot_noise(methods: Mapping[str, tuple[Sequence[float], Sequence[np.ndarray]]], label: str) -> str:
    """Plots one curve per method: means, with bars of one standard deviation, over the share of flipped labels.

    methods: name -> shares ``[K]``, and for each share the values of its seeds, ``[S]``
    """
    with matplotlib.rc_context(STYLE):
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
        return render_figure(figure, f"{label} by noise")


def plot_histograms(panels: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Plots one panel per title: the distribution of whole numbers, as shares, with one line per split.

    panels: title -> split -> values
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, 2.9))
        line = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, splits) in zip(line, panels.items(), strict=True):
            _histogram(axes, splits)
            axes.set_title(title)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.legend(*line[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(COLOURS))
        return render_figure(figure, "; ".join(panels))


def _histogram(axes: Axes, splits: Mapping[str, np.ndarray]) -> None:
    most = max(float(np.quantile(values, SHOWN_SHARE)) for values in splits.values())
    width = max(1, round(most / 24))
    edges = np.arange(0, most + 2 * width, width) - 0.5
    for (split, values), colour in zip(splits.items(), cycle(COLOURS)):
        counts, _ = np.histogram(np.minimum(values, edges[-1] - 0.5), edges)
        axes.stairs(counts / len(values), edges, color=colour, linewidth=1.5, label=split)
    axes.set_xlim(max(0.0, edges[0]), edges[-1])


def _widen(low: float, high: float) -> tuple[float, float]:
    """Returns the limits of an axis from 0 to 1, LEAST_RANGE apart or more."""
    middle, half = (low + high) / 2, max(high - low, LEAST_RANGE) / 2
    return max(middle - half, -0.02), min(middle + half, 1.02)


def compute_deviation(values: np.ndarray) -> float:
    """Returns the standard deviation of the sample, as the papers give it, and 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
