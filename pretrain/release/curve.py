"""The training curves of a release as a picture, which the card shows wherever it is read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CURVE = "training_curve.png"
OF_PRETRAINING = {
    "pair_loss": "pair loss (nats)",
    "pair_auc": "AUC of held-out pairs",
    "pair_mrr": "MRR among the texts of a batch",
    "mlm_loss": "masked-LM loss (nats)",
    "rtd_loss": "replaced-token loss (nats)",
}
COLOURS = ("#4a90d9", "#e0852f", "#3fa66a", "#b06fc4", "#d0555c", "#8a8f98", "#26a6a6", "#b99a2e")
_LEAST_POINTS = 2
_FEW_POINTS = 30  # of a curve, each of which then has a dot
_PANEL = (4.0, 2.7)  # inches
_DOTS_PER_INCH = 110  # a card is about 1,000 points wide


def draw_curve(lines: Sequence[Mapping[str, Any]], panels: Mapping[str, str], path: Path) -> bool:
    """Writes a PNG with a panel for each figure that was logged more than once; returns whether there was any."""
    curves = {figure: _collect(lines, figure) for figure in panels}
    curves = {figure: of_splits for figure, of_splits in curves.items() if of_splits}
    if not curves:
        return False
    from matplotlib.figure import Figure  # a second to import, which runs without a picture need not wait for

    width, height = _PANEL
    figure = Figure((width * len(curves), height), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (name, of_splits) in zip(axes, curves.items(), strict=True):
        panel.set_prop_cycle(color=COLOURS)
        for split, points in of_splits.items():
            marker = "o" if len(points) < _FEW_POINTS else None
            panel.plot(*zip(*points, strict=True), marker=marker, markersize=3, linewidth=1.4, label=split)
        panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=5, integer=True)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_xlabel("updates")
        panel.set_title(panels[name], fontsize=10, loc="left")
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
        panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH, facecolor="white", metadata={"Software": None})
    return True


def _collect(lines: Sequence[Mapping[str, Any]], figure: str) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if isinstance(line.get(figure), int | float):
            curves.setdefault(line["split"], []).append((line["step"], line[figure]))
    return {split: points for split, points in curves.items() if len(points) >= _LEAST_POINTS}
