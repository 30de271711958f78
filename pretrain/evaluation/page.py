"""The page of a pre-training run, report.html: its curves and figures, what happened, pairs to look at, its settings.

It is one file without scripts that loads nothing from elsewhere. Texts of the corpus are escaped.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.pages import render_template
from data_pipeline.plots import Points, plot_curves
from data_pipeline.tokenizers import tidy_decoded
from pretrain.runtime.history import REWOUND, STARTED, count_kind, describe_history


class Panel(NamedTuple):
    """A plot of the page.

    figures: that it shows, by their names in metrics.jsonl
    about:   what they mean
    scale:   values that it shows at least, so that noise does not look like a trend
    """

    figures: tuple[str, ...]
    about: str = ""
    scale: tuple[float, float] | None = None


PANELS = {
    "Loss": Panel(("loss",), "of all objectives together, by their weights"),
    "Pairs told apart": Panel(
        ("pair_auc", "pair_auc_hard", "pair_auc_easy"),
        "how often a positive pair scores above a negative one, hard or easy (area under the ROC curve); chance is .5",
        (0.4, 1.0),
    ),
    "Pair loss": Panel(("pair_loss",)),
    "F1 of the positive pairs": Panel(("pair_f1",), "0 until some pair is called positive", (0, 1)),
    "Queries": Panel(
        ("pair_mrr", "pair_r1"), "mean of 1 / rank of the right text, and how often it comes first", (0, 1)
    ),
    "Masked-LM loss": Panel(("mlm_loss",), "of the tokens that were masked, in nats"),
    "Replaced-token loss": Panel(("rtd_loss",)),
    "Probe": Panel(("map",), "MAP of a copy that was fine-tuned for a moment", (0, 1)),
    "Learning rate": Panel(("learning_rate",)),
    "Speed": Panel(("tokens_per_second",), "tokens per second, of all ranks"),
}
CHANCE = 0.5  # of the AUC
GAIN = 0.05  # of another figure, as a share of its first value, that counts as learning
LITTLE, MUCH = 0.6, 0.7  # AUC from which a run has learned to tell pairs apart a little, and well
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
    progress: a line about speed and time left
    """
    validation = [line for line in lines if line["split"] == "validation"]
    happened = describe_history(history)
    return render_template(
        TEMPLATES,
        "run.html",
        {"tidy": tidy_decoded},
        title=title,
        notes=[],
        step=max((line["step"] for line in lines), default=0),
        total_steps=facts["total_steps"],
        progress=progress,
        answer=say_learned(validation[0], validation[-1], facts["settings"]) if validation else None,
        warnings=warnings,
        plots=_plot_panels(lines, history),
        panels=PANELS,
        resumed=bool(_list_marks(history)),
        compared=_compare(validation[0], validation[-1]) if validation else None,
        happened=happened[-MOST_EVENTS:],
        num_happened=len(happened),
        starts=count_kind(history, STARTED),
        rewinds=count_kind(history, REWOUND),
        pairs=[{**pair, "score": _score(pair.get("logit"))} for pair in pairs],
        settings={name: value for name, value in facts["settings"].items() if value is not None},
    )


def say_learned(
    first: Mapping[str, Any], last: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Whether a run has learned its objective, in a word, and the figure that says so; None where none does.

    first, last: validations
    """
    if settings.get("pair_weight") and "pair_auc" in last:
        auc = last["pair_auc"]
        word = "Not yet" if auc < LITTLE else "A little" if auc < MUCH else "Yes"
        began = first["pair_auc"]
        return word, f"the AUC of held-out pairs is {auc:.2f} (chance {CHANCE:.2f}), at the start {began:.2f}"
    for name, told, sign in (("pair_mrr", "MRR of held-out queries", 1), ("mlm_loss", "masked-LM loss", -1)):
        if name in last and name in first:
            word = "Yes" if sign * (last[name] - first[name]) > GAIN * first[name] else "Not yet"
            return word, f"the {told} is {last[name]:.2f}, at the start {first[name]:.2f}"
    return None


def _list_marks(history: Sequence[Mapping[str, Any]]) -> list[float]:
    return sorted({line["step"] for line in history[1:] if line["kind"] in (STARTED, REWOUND)})


def _plot_panels(lines: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    plots = {}
    for name, panel in PANELS.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        for figure, line in product(panel.figures, lines):
            if figure in line:
                label = f"{figure}, {line['split']}"
                curves.setdefault(label, []).append((line["step"], line[figure]))
        if curves:
            thinned = {label: thin(points) for label, points in curves.items()}
            plots[name] = plot_curves(thinned, name, _list_marks(history)[-MOST_EVENTS:], panel.scale)
    return plots


def thin(points: Points) -> Points:
    """At most about MOST_POINTS of them: of each stretch the lowest and the highest, so that what leaps is seen."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


def _compare(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    names = [name for name, value in last.items() if isinstance(value, float) and name in first]
    head = [f"step {line['step']:,}" for line in (first, last)]
    return head, [(name, [f"{line[name]:.4f}" for line in (first, last)]) for name in names]


def _score(logit: float | None) -> float | None:
    """The probability, by the model, that a pair is a positive one; None where it has no logit that means anything."""
    if logit is None:
        return None
    return 1 / (1 + exp(-logit)) if logit > -700 else 0.0
