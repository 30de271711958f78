"""The page of a pre-training run, report.html: its curves and figures, what happened, pairs to look at, its settings.

It is one file without scripts that loads nothing from elsewhere. Texts of the corpus are escaped.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.core import plots
from data_pipeline.core.pages import render_template
from data_pipeline.tokenizers import tidy_decoded
from pretrain.engine.history import REWOUND, STARTED, count_kind, describe_history


class Panel(NamedTuple):
    """A plot of the page.

    figures: that it shows, by their names in metrics.jsonl
    about:   what they mean
    scale:   values that it shows at least, so that noise does not look like a trend
    """

    figures: tuple[str, ...]
    about: str = ""
    scale: tuple[float, float] | None = None


class Progress(NamedTuple):
    """How far a run is, as the page says it.

    step:             updates so far; the log may be some behind
    tokens:           that were trained on
    steps_per_second: validation and checkpoints included; None where it is not known yet
    left:             the time left, in words
    written:          date and time of the page, UTC
    due:              time by which the page will have been written again, UTC; None where the run has ended
    folder:           of the run
    """

    step: int
    tokens: int
    steps_per_second: float | None
    left: str
    written: str
    due: str | None
    folder: str


Curves = dict[tuple[str, str], list[tuple[float, float]]]  # by figure and split

PANELS = {
    "Loss": Panel(("loss",), "the losses of all objectives, added up by their weights"),
    "Pairs told apart": Panel(
        ("pair_auc", "pair_auc_hard", "pair_auc_easy"),
        "how often a positive pair scores above a negative one, hard or easy (area under the ROC curve); chance is .5",
        (0.4, 1.0),
    ),
    "Pair loss": Panel(("pair_loss",), "of the pair objective alone, in nats per pair"),
    "F1 of the positive pairs": Panel(
        ("pair_f1",), "harmonic mean of precision and recall; 0 until some pair is called positive", (0, 1)
    ),
    "Queries": Panel(
        ("pair_mrr", "pair_r1"), "mean of 1 / rank of the right text, and how often it comes first", (0, 1)
    ),
    "Masked-LM loss": Panel(("mlm_loss",), "of the tokens that were masked, in nats per token"),
    "Replaced-token loss": Panel(("rtd_loss",), "of telling replaced tokens from original ones, in nats per token"),
    "Probe": Panel(
        ("map",), "mean average precision (MAP) of a copy that is fine-tuned on a little labelled data", (0, 1)
    ),
    "Learning rate": Panel(("learning_rate",), "of the update, by the schedule"),
    "Speed": Panel(("tokens_per_second",), "tokens per second, of all ranks"),
}
FIGURES = {  # by their names in metrics.jsonl, those of validation that the page lists
    "loss": "all losses, added up by their weights",
    "mlm_loss": "masked language modelling: loss per masked token, in nats",
    "mlm_accuracy": "share of the masked tokens that were predicted rightly",
    "rtd_loss": "replaced-token detection: loss per token, in nats",
    "rtd_accuracy": "share of all tokens that were judged rightly",
    "rtd_recall": "share of the replaced tokens that were found",
    "rtd_precision": "share of the tokens called replaced that were replaced",
    "replaced_share": "share of all tokens that were replaced",
    "pair_loss": "loss of the pair objective, in nats per pair",
    "pair_accuracy": "share of all pairs that were classified rightly: high even if all are called negative",
    "pair_accuracy_positive": "share of the positive pairs that were classified rightly",
    "pair_accuracy_hard": "share of the hard negatives (two texts of one document) that were classified rightly",
    "pair_accuracy_easy": "share of the easy negatives (texts of two documents) that were classified rightly",
    "pair_f1": "F1 (harmonic mean of precision and recall) of the positive pairs",
    "pair_f1_hard": "F1 of the positive pairs against hard negatives alone",
    "pair_f1_easy": "F1 of the positive pairs against easy negatives alone",
    "pair_auc": "how often a positive pair scores above a negative one; chance is 0.5",
    "pair_auc_hard": "how often a positive pair scores above a hard negative; chance is 0.5",
    "pair_auc_easy": "how often a positive pair scores above an easy negative; chance is 0.5",
    "pair_r1": "share of the queries whose own text is the most similar",
    "pair_mrr": "mean of 1 / rank of a query's own text",
    "share_positive": "share of positive pairs among all",
    "share_hard": "share of hard negatives among all pairs",
    "share_easy": "share of easy negatives among all pairs",
}
EVERY = {"train": "log_steps", "validation": "eval_steps", "probe": "probe_steps"}  # what says when each split is due
RELOAD = 60  # seconds after which a browser reads the page of a run under way again
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
    progress: Progress | None = None,
    help_of: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML.

    facts:    what run.json says of the run
    lines:    of metrics.jsonl
    pairs:    what ``describe_pairs`` yields, each with its ``logit``, or None where it means nothing; of a bi-encoder
              with its ``cosine``; by the model of the last validation
    history:  what ``read_history`` returns
    help_of:  what settings mean, by their names
    """
    validation = [line for line in lines if line["split"] == "validation"]
    happened = describe_history(history)
    step = max((line["step"] for line in lines), default=0)
    curves = {name: curves for name, panel in PANELS.items() if (curves := _collect_curves(panel, lines))}
    drawn = {name for name, own in curves.items() if any(len(points) > 1 for points in own.values())}
    learned = say_learned(validation[0], validation[-1], facts["settings"]) if len(validation) > 1 else None
    return render_template(
        TEMPLATES,
        "run.html",
        {"tidy": tidy_decoded},
        title=title,
        notes=[],
        step=progress.step if progress else step,
        total_steps=facts["total_steps"],
        progress=progress,
        reload=RELOAD,
        answer=learned,
        warnings=warnings,
        plots={name: _plot(name, curves[name], history) for name in PANELS if name in drawn},
        to_come={name: _find_next(own, step, facts) for name, own in curves.items() if name not in drawn},
        panels=PANELS,
        resumed=bool(drawn and _list_marks(history)),
        compared=_compare(validation) if validation else None,
        measured_at=validation[-1]["step"] if validation else 0,
        happened=happened[-MOST_EVENTS:],
        num_happened=len(happened),
        starts=count_kind(history, STARTED),
        rewinds=count_kind(history, REWOUND),
        pairs=[{**pair, "score": _score(pair.get("logit"))} for pair in pairs],
        settings={name: value for name, value in facts["settings"].items() if value is not None},
        help_of=help_of or {},
    )


def say_learned(
    first: Mapping[str, Any], last: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Whether a run has learned its objective, in a word, and the figure that says so; None where none does.

    first, last: validations
    """
    if settings.get("pair_weight") and "pair_auc" in first and "pair_auc" in last:
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


def _collect_curves(panel: Panel, lines: Sequence[Mapping[str, Any]]) -> Curves:
    """A curve for each figure and split of which there are values."""
    curves: Curves = {}
    for figure, line in product(panel.figures, lines):
        if figure in line:
            curves.setdefault((figure, line["split"]), []).append((line["step"], line[figure]))
    return curves


def _plot(name: str, curves: Curves, history: Sequence[Mapping[str, Any]]) -> str:
    thinned = {", ".join(key): thin(points) for key, points in curves.items()}
    return plots.plot_curves(thinned, name, _list_marks(history)[-MOST_EVENTS:], PANELS[name].scale)


def _find_next(curves: Curves, step: int, facts: Mapping[str, Any]) -> int:
    """The step by which one of the curves has its next value."""
    every = [facts["settings"][EVERY[split]] for _, split in curves]
    return min(facts["total_steps"], *((step // steps + 1) * steps for steps in every))


def thin(points: plots.Points) -> plots.Points:
    """At most about MOST_POINTS of them: of each stretch the lowest and the highest, so that what leaps is seen."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


def _compare(validation: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """The head and the rows of a table of the first and the last validation: name, meaning and figures."""
    shown = [validation[0], validation[-1]] if len(validation) > 1 else [validation[0]]
    names = [name for name, value in shown[-1].items() if isinstance(value, float) and name in shown[0]]
    head = [f"step {line['step']:,}" for line in shown]
    meanings = {name: FIGURES.get(name.rpartition("/")[2], "") for name in names}
    return head, [(name, meanings[name], [f"{line[name]:.4f}" for line in shown]) for name in names]


def _score(logit: float | None) -> float | None:
    """The probability, by the model, that a pair is a positive one; None where it has no logit that means anything."""
    if logit is None:
        return None
    return 1 / (1 + exp(-logit)) if logit > -700 else 0.0
