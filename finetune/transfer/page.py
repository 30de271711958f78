"""The matrix as a page and as CSV: figures 1 to 3 of the paper and its table 2, with one's own sources and targets."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from data_pipeline.pages import render_template
from finetune.evaluation.metrics import TITLES
from finetune.reports.plots import COLOURS, STYLE, WIDTH, render_figure

from .fusion import FusionWeights
from .matrix import Matrix, average_best
from .published import PUBLISHED

TEMPLATES = Path(__file__).resolve().parent / "templates"
COLUMNS = 3  # of panels
MOST_NAMES = 12  # of sources that are all named in a panel
# From nothing to blue, so that it suits a light and a dark page
SHADES = LinearSegmentedColormap.from_list("shades", [(*to_rgb(COLOURS[0]), 0.0), (*to_rgb(COLOURS[0]), 0.95)])
DIAMONDS = (COLOURS[3], COLOURS[1], COLOURS[5], COLOURS[2], COLOURS[4])


def render_page(
    title: str,
    matrix: Matrix,
    sizes: np.ndarray | None,
    similarity: np.ndarray | None,
    fused: Mapping[str, FusionWeights],
) -> str:
    """Returns the page.

    sizes:      ``[S]`` questions of each source; None where it is not known
    similarity: ``[S, T]`` of ``domains.compare_domains``; None likewise
    fused:      of the sources that are fusions, which adapters they take
    """
    plots = [("How sources transfer", plot_violins(matrix))] if len(matrix.sources) > 1 else []
    if len(matrix.sources) > 2 and sizes is not None and similarity is not None:
        plots.append(("Are similar or large sources the good ones?", plot_scatter(matrix, sizes, similarity)))
        plots.append(("What choosing by similarity or size would give", plot_subsets(matrix, sizes, similarity)))
    plots += [
        (f"How much of each adapter {name} takes, layer by layer", plot_fusion(weights))
        for name, weights in fused.items()
    ]
    best = matrix.values.max(axis=0)
    rows = [
        {
            "name": name,
            "size": None if sizes is None else int(sizes[number]),
            "cells": [_cell(matrix, number, t) for t in range(len(matrix.targets))],
        }
        for number, name in sorted(enumerate(matrix.sources), key=lambda s: -float(matrix.values[s[0]].mean()))
    ]
    return render_template(
        TEMPLATES,
        "matrix.html",
        title=title,
        notes=[],
        targets=[f"{t.name} ({TITLES[t.metric]})" for t in matrix.targets],
        rows=rows,
        baselines={name: values.tolist() for name, values in matrix.baselines.items()},
        best=best.tolist(),
        plots=plots,
        published=PUBLISHED,
        questions=[t.num_questions for t in matrix.targets],
    )


def _cell(matrix: Matrix, source: int, target: int) -> dict[str, float]:
    """The value, and its place between the lowest and the highest of the target, from 0 to 1."""
    column = matrix.values[:, target]
    spread = float(np.ptp(column))
    value = float(column[source])
    return {"value": value, "place": (value - float(column.min())) / spread if spread else 0.5}


def _break_name(name: str) -> str:
    """A long name such as quantumcomputing/title_answer in two lines, so that it stays in its panel."""
    return name.replace("/", "/\n") if len(name) > 20 else name


def _panels(count: int, height: float) -> tuple[Figure, list]:
    lines = -(-count // COLUMNS)
    figure = Figure((WIDTH, height * lines))
    axes = figure.subplots(lines, COLUMNS, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def plot_violins(matrix: Matrix) -> str:
    """Figure 2: for each target the sources' values as a violin, and baselines as diamonds."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(matrix.targets), 2.6)
        for column, (axes, target) in enumerate(zip(panels, matrix.targets, strict=True)):
            values = matrix.values[:, column]
            if np.ptp(values) > 0:
                parts = axes.violinplot(values, [0], showextrema=False, quantiles=[0.25, 0.75])
                parts["bodies"][0].set(facecolor=COLOURS[0], alpha=0.35)
            axes.plot(np.linspace(-0.08, 0.08, len(values)), np.sort(values), "o", color=COLOURS[0], markersize=3)
            axes.hlines(values.mean(), -0.15, 0.15, color=COLOURS[0])
            for place, ((name, known), colour) in enumerate(zip(matrix.baselines.items(), DIAMONDS, strict=False)):
                axes.plot(0.28 + 0.1 * place, known[column], "D", color=colour, markersize=6, label=name)
            axes.set_title(_break_name(target.name))
            axes.set_ylabel(TITLES[target.metric])
            axes.set_xticks([])
            axes.set_xlim(-0.6, 0.6)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=3)
        return render_figure(figure, "zero-shot values of all sources on each target, with baselines")


def plot_scatter(matrix: Matrix, sizes: np.ndarray, similarity: np.ndarray) -> str:
    """Each source's value over its similarity to the target; the larger the mark, the larger the source."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(matrix.targets), 2.6)
        area = 12 + 80 * np.log1p(sizes) / np.log1p(sizes.max())
        for column, (axes, target) in enumerate(zip(panels, matrix.targets, strict=True)):
            axes.scatter(similarity[:, column], matrix.values[:, column], area, color=COLOURS[0], alpha=0.6)
            _name_points(axes, matrix.sources, similarity[:, column], matrix.values[:, column])
            axes.set_title(_break_name(target.name))
            axes.set_ylabel(TITLES[target.metric])
            axes.set_xlabel("similarity")
            axes.margins(0.15)
        return render_figure(figure, "value of each source over its similarity to the target")


def _name_points(axes: Axes, names: Sequence[str], x: np.ndarray, y: np.ndarray) -> None:
    """Writes names beside points, towards the middle and above and below by turns. Of many, the extreme ones alone."""
    shown = list(range(len(names)))
    if len(names) > MOST_NAMES:
        shown = sorted({*np.argsort(x)[-3:].tolist(), *np.argsort(y)[-3:].tolist(), *np.argsort(y)[:3].tolist()})
    middle = (x.min() + x.max()) / 2
    for turn, number in enumerate(sorted(shown, key=lambda n: x[n])):
        right = x[number] > middle
        text = axes.annotate(
            names[number],
            (x[number], y[number]),
            textcoords="offset points",
            xytext=(-4 if right else 4, -10 if turn % 2 else 5),
            ha="right" if right else "left",
            fontsize=7,
        )
        text.set_in_layout(False)  # a long name makes no panel smaller


def plot_subsets(matrix: Matrix, sizes: np.ndarray, similarity: np.ndarray) -> str:
    """Figure 3: the mean value of the k best sources, as similarity, size and an oracle choose them."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(matrix.targets), 2.4)
        count = np.arange(1, len(matrix.sources) + 1)
        for column, (axes, target) in enumerate(zip(panels, matrix.targets, strict=True)):
            values = matrix.values[:, column]
            ways = {"oracle": values, "similarity": similarity[:, column], "size": sizes}
            for (name, by), colour in zip(ways.items(), COLOURS, strict=False):
                order = np.argsort(-by, kind="stable")
                axes.plot(count, average_best(values, order), "-o", color=colour, markersize=3, label=name)
            axes.set_title(_break_name(target.name))
            axes.set_ylabel(TITLES[target.metric])
            axes.set_xlabel("sources that are kept")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=3)
        return render_figure(figure, "mean value of the sources chosen by similarity, size and an oracle")


def plot_fusion(fused: FusionWeights) -> str:
    """Figures 4 and 5: of each adapter (a line) the mean weight in each layer (a column), for each target."""
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(fused.weights), 0.9 + 0.22 * len(fused.adapters))
        most = max(float(weights.max()) for weights in fused.weights.values())
        for number, (axes, (target, weights)) in enumerate(zip(panels, fused.weights.items(), strict=True)):
            layers, names = len(weights), fused.adapters if number % COLUMNS == 0 else []
            shown = axes.pcolormesh(weights.T, cmap=SHADES, vmin=0, vmax=most, edgecolor="none")
            axes.set_yticks(np.arange(len(names)) + 0.5, names)
            axes.set_xticks(np.arange(layers) + 0.5, [f"{n + 1}" for n in range(layers)])
            axes.invert_yaxis()
            axes.grid(visible=False)
            axes.tick_params(length=0)
            axes.set_title(_break_name(target))
            axes.set_xlabel("layer")
        figure.colorbar(shown, ax=panels, label="mean weight", shrink=0.8)
        return render_figure(figure, "mean weight of each adapter in each layer, on each target")


def format_csv(matrix: Matrix, sizes: np.ndarray | None, similarity: np.ndarray | None) -> str:
    """A line of each cell, and of each baseline: source, target, metric, value, size, similarity."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", "target", "metric", "value", "size", "similarity"])
    for column, target in enumerate(matrix.targets):
        for number, name in enumerate(matrix.sources):
            size = "" if sizes is None else int(sizes[number])
            alike = "" if similarity is None else round(float(similarity[number, column]), 4)
            value = round(float(matrix.values[number, column]), 6)
            writer.writerow([name, target.name, target.metric, value, size, alike])
        for name, values in matrix.baselines.items():
            if not np.isnan(values[column]):
                writer.writerow([name, target.name, target.metric, round(float(values[column]), 6), "", ""])
    return text.getvalue()


def format_table(matrix: Matrix) -> str:
    """The values as lines of text: a row of each source, then the baselines."""
    rows = [*zip(matrix.sources, matrix.values, strict=True), *matrix.baselines.items()]
    width = max(len(name) for name, _ in rows)
    heads = [f"{t.name} {TITLES[t.metric]}" for t in matrix.targets]
    lines = [" " * width + "".join(f"  {head:>{max(len(head), 6)}}" for head in heads)]
    for name, values in rows:
        cells = [
            f"  {'' if np.isnan(v) else f'{v:.4f}':>{max(len(head), 6)}}" for v, head in zip(values, heads, strict=True)
        ]
        lines.append(f"{name:<{width}}" + "".join(cells))
    return "\n".join(lines)
