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
_LEAST_POINTS = 2
_PANEL = (4.0, 2.7)  # inches
_DOTS_PER_INCH = 110  # a card is about 1,000 points wide


def draw_curve(lines: Sequence[Mapping[str, Any]], panels: Mapping[str, str], path: Path) -> bool:
    """Writes a PNG with a panel for each figure that was logged more than once; returns whether there was any."""
    curves = {figure: _collect(lines, figure) for figure in panels}
    curves = {figure: of_splits for figure, of_splits in curves.items() if of_splits}
    if not curves:
        return False
    from matplotlib.figure import Figure  # a second to import, which runs without a picture need not wait for

    from data_pipeline.core.plots import draw_curves

    width, height = _PANEL
    figure = Figure((width * len(curves), height), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (name, of_splits) in zip(axes, curves.items(), strict=True):
        draw_curves(panel, of_splits)
        panel.set_title(panels[name], fontsize=10, loc="left")
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
        panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH, facecolor="white", metadata={"Software": None})
    return True


def _collect(lines: Sequence[Mapping[str, Any]], figure: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if isinstance(line.get(figure), int | float):
            found.setdefault(line["split"], []).append((line["step"], line[figure]))
    return {split: points for split, points in found.items() if len(points) >= _LEAST_POINTS}
