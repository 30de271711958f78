"""Draws the training curves of a release as a picture for its card."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
CURVE = "training_curve.png"
PRETRAINING_PANELS = {
    "pair_loss": "pair loss (nats)",
    "pair_auc": "AUC of held-out pairs",
    "pair_mrr": "MRR among the texts of a batch",
    "mlm_loss": "masked-LM loss (nats)",
    "rtd_loss": "replaced-token loss (nats)",
}
COLOURS = ("#4a90d9", "#e0852f", "#3fa66a", "#b06fc4", "#d0555c", "#8a8f98", "#26a6a6", "#b99a2e")
_MIN_POINTS = 2
_FEW_POINTS = 30  # a curve with fewer has a dot at each
_WIDTH, _HEIGHT = 4.0, 2.7  # inches per panel
_DOTS_PER_INCH = 110  # two panels fill a card, which is about 1,000 pixels wide


def draw_curve(lines: Iterable[Mapping[str, Any]], panels: Mapping[str, str], path: Path) -> bool:
    """Writes a PNG with a panel for each metric logged more than once; returns False without one, or matplotlib.

    lines:  records of a log, each with its "step", "split" and metrics
    panels: metric -> title
    """
    curves = _collect(lines, panels)
    if not curves:
        return False
    try:
        from matplotlib.figure import Figure  # takes a second to import
    except ModuleNotFoundError:
        log.warning("no %s: matplotlib is not installed", path.name)
        return False

    figure = Figure((_WIDTH * len(curves), _HEIGHT), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (metric, splits) in zip(axes, curves.items(), strict=True):
        panel.set_prop_cycle(color=COLOURS)
        for split, points in splits.items():
            marker = "o" if len(points) < _FEW_POINTS else None
            panel.plot(*zip(*points, strict=True), marker=marker, markersize=3, linewidth=1.4, label=split)
        panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=5, integer=True)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_xlabel("updates")
        panel.set_title(panels[metric], fontsize=10, loc="left")
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
        panel.legend(frameon=False, fontsize=9)
    metadata = {"Software": None}  # no version of matplotlib: equal curves give equal bytes
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH, facecolor="white", metadata=metadata)
    return True


def _collect(lines: Iterable[Mapping[str, Any]], metrics: Iterable[str]) -> dict[str, dict[str, list]]:
    """Returns the points (step, value) of each metric by split, without splits that have fewer than two."""
    curves: dict[str, dict[str, list]] = {metric: {} for metric in metrics}
    for line in lines:
        for metric, splits in curves.items():
            if isinstance(line.get(metric), int | float):
                splits.setdefault(line["split"], []).append((line["step"], line[metric]))
    kept = {m: {split: p for split, p in splits.items() if len(p) >= _MIN_POINTS} for m, splits in curves.items()}
    return {metric: splits for metric, splits in kept.items() if splits}
