"""The page of a pre-training run, report.html: its curves and figures, what happened, pairs to look at, its settings.

It is one file without scripts that loads nothing from elsewhere. Texts of the corpus are escaped.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

from data_pipeline.pages import render_template
from data_pipeline.plots import Points, plot_curves
from pretrain.runtime.history import REWOUND, STARTED
from pretrain.watching.happenings import count_starts, describe_history

PANELS = {  # of the page, with the figures of each
    "Loss": ("loss",),
    "Pair loss": ("pair_loss",),
    "Area under the ROC curve of the pairs": ("pair_auc", "pair_auc_hard", "pair_auc_easy"),
    "F1 of the positive pairs": ("pair_f1",),
    "MRR and R@1 of queries": ("pair_mrr", "pair_r1"),
    "Masked-LM loss": ("mlm_loss",),
    "Replaced-token loss": ("rtd_loss",),
    "MAP of the probe": ("map",),
    "Learning rate": ("learning_rate",),
    "Tokens per second": ("tokens_per_second",),
}
MOST_POINTS = 500  # of a curve: more than a plot has room for, so that pages of long runs stay small
MOST_EVENTS = 60  # of the history, the latest
TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_page(
    title: str,
    facts: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
    history: Sequence[Mapping[str, Any]] = (),
    progress: str = "",
) -> str:
    """The page as HTML.

    facts:    what run.json says of the run
    lines:    of metrics.jsonl
    pairs:    what ``describe_pairs`` yields, each with its ``logit``, or None where it means nothing; of a bi-encoder
              with its ``cosine``
    history:  what ``read_history`` returns
    progress: a line about speed and time left
    """
    validation = [line for line in lines if line["split"] == "validation"]
    happened = describe_history(history)
    return render_template(
        TEMPLATES,
        "run.html",
        title=title,
        notes=[],
        step=max((line["step"] for line in lines), default=0),
        total_steps=facts["total_steps"],
        progress=progress,
        warnings=warnings,
        plots=_plot_panels(lines, history),
        resumed=bool(_list_marks(history)),
        compared=_compare(validation[0], validation[-1]) if validation else None,
        happened=happened[-MOST_EVENTS:],
        num_happened=len(happened),
        starts=count_starts(history),
        rewinds=sum(line["kind"] == REWOUND for line in history),
        pairs=[{**pair, "score": _score(pair.get("logit"))} for pair in pairs],
        settings={name: value for name, value in facts["settings"].items() if value is not None},
    )


def _list_marks(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """List the steps at which the run was resumed, or went back to."""
    return sorted({line["step"] for line in history[1:] if line["kind"] in (STARTED, REWOUND)})


def _plot_panels(lines: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Plot each panel for whose figures there are values, with a curve for each figure and split."""
    plots = {}
    for name, figures in PANELS.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        for figure, line in product(figures, lines):
            if figure in line:
                label = line["split"] if len(figures) == 1 else f"{figure}, {line['split']}"
                curves.setdefault(label, []).append((line["step"], line[figure]))
        if curves:
            thinned = {label: thin(points) for label, points in curves.items()}
            plots[name] = plot_curves(thinned, name, _list_marks(history)[-MOST_EVENTS:])
    return plots


def thin(points: Points) -> Points:
    """At most about MOST_POINTS of them: of each stretch the lowest and the highest, so that what leaps is seen."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=_value), max(stretch, key=_value)})
    return kept


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _compare(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The head and the rows of a table of the first and the last validation."""
    names = [name for name, value in last.items() if isinstance(value, float) and name in first]
    head = [f"step {line['step']:,}" for line in (first, last)]
    return head, [(name, [f"{line[name]:.4f}" for line in (first, last)]) for name in names]


def _score(logit: float | None) -> float | None:
    """The probability, by the model, that a pair is a positive one; None where it has no logit that means anything."""
    if logit is None:
        return None
    return 1 / (1 + exp(-logit)) if logit > -700 else 0.0
