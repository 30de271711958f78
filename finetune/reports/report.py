"""An experiment or a study as one HTML page that loads nothing: figures beside the papers', curves, examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from data_pipeline.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import METRICS, TITLES, rank_rows
from finetune.evaluation.significance import SIGNIFICANT
from finetune.evaluation.trec import write_lines

from .card import AS_STARTED
from .pages import TEMPLATES, ShownCandidate, pick_candidates
from .plots import LEAST_RANGE, Curve, compute_deviation, plot_dots, plot_histograms, plot_noise, plot_trainings

TOP = 5  # candidates that an example shows


@dataclass(frozen=True)
class SplitFigures:
    """What a split holds, as ``count_split`` counts it.

    filter:          the filter that the split has been through, see ``filters.filter_questions``
    positives:       number of right candidates
    question_words:  ``[Q]`` number of words of each question
    answer_words:    ``[N]`` number of words of each candidate
    candidates:      ``[Q]`` number of candidates of each question
    paper_questions: number of questions according to a paper, where one says it
    paper_pairs:     number of pairs according to that paper
    """

    split: str
    filter: str
    positives: int
    question_words: np.ndarray
    answer_words: np.ndarray
    candidates: np.ndarray
    paper_questions: int | None = None
    paper_pairs: int | None = None


@dataclass(frozen=True)
class ResultRow:
    """A way of fine-tuning, run with S seeds.

    metrics: for each metric that the report shows, and MAP, ``[S]``
    p:       for a metric, p of the difference from the report's first row, corrected for the number of rows
    paper:   for a metric, a paper's mean and its standard deviation, which is None where the paper gives none
    seeded:  False where nothing is drawn at random, as for BM25
    starred: the metrics whose difference is established, see ``significance.is_established``
    """

    name: str
    metrics: Mapping[str, np.ndarray]
    p: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    starred: Sequence[str] = ()
    seeded: bool = True


@dataclass(frozen=True)
class Curves:
    """How a row's quantities went during training, one curve per seed; early stopping makes some shorter.

    test_map: None where it was not measured; it shows how stable fine-tuning is (Garg et al., 2020, figure 4)
    """

    name: str
    training_loss: Sequence[Curve]
    dev_map: Sequence[Curve]
    test_map: Sequence[Curve] | None = None


@dataclass(frozen=True)
class Noise:
    """The MAP of a method at K shares of flipped training labels (Garg et al., 2020, table 5).

    shares: ``[K]``
    map:    for each share, that of every seed, ``[S]``
    """

    name: str
    shares: Sequence[float]
    map: Sequence[np.ndarray]


@dataclass(frozen=True)
class Example:
    """A question with its best candidates, and the best right one if it ranks lower."""

    question: str
    candidates: Sequence[ShownCandidate]


@dataclass(frozen=True)
class RowSettings:
    """What sets a row of the results apart, and how its training went, for each seed.

    own:     its settings that other rows have otherwise
    updates: how many were made
    best:    after how many the ranker was best on the dev set
    minutes: of training and validation
    """

    name: str
    own: Mapping[str, object]
    updates: Sequence[int]
    best: Sequence[int]
    minutes: Sequence[float]


@dataclass(frozen=True)
class Report:
    """What a page shows; a section without content is left out.

    notes:           what a reader must know of the data and the settings, a line each
    examples_are:    whose ranking the examples show, and how they were chosen
    shared_settings: those of all rows
    measured:        the split that the rows, the noise and the examples are of
    shown:           the metrics of its table
    """

    title: str
    notes: Sequence[str] = ()
    splits: Sequence[SplitFigures] = ()
    rows: Sequence[ResultRow] = ()
    curves: Sequence[Curves] = ()
    noise: Sequence[Noise] = ()
    examples: Sequence[Example] = ()
    examples_are: str = ""
    settings: Sequence[RowSettings] = ()
    shared_settings: Mapping[str, object] = field(default_factory=dict)
    measured: str = "test"
    shown: Sequence[str] = METRICS


def count_split(
    data: AnswerSet, mode: str, paper_questions: int | None = None, paper_pairs: int | None = None
) -> SplitFigures:
    """Counts what ``data`` holds, which has been through the filter ``mode``. White space delimits words."""
    return SplitFigures(
        data.split,
        mode,
        int(data.labels.sum()),
        np.array([len(question.split()) for question in data.questions]),
        pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(data.answers))).to_numpy(),
        np.diff(data.starts),
        paper_questions,
        paper_pairs,
    )


def pick_examples(data: AnswerSet, scores: np.ndarray, questions: Sequence[int], top: int = TOP) -> list[Example]:
    """Returns the questions with these numbers, each with the candidates that ``scores`` ``[N]`` rank highest.

    Raises KinspanError for a score that is not finite.
    """
    order = rank_rows(data, scores)
    return [Example(data.questions[q], pick_candidates(data, scores, order, q, top)) for q in questions]


def write_report(path: Path, report: Report) -> None:
    """Writes the page. Raises KinspanError where ``path`` cannot be written."""
    write_lines(path, [render_report(report)])


def render_report(report: Report) -> str:
    """Returns the HTML of a report. Texts are escaped, plots are part of the page, and it loads nothing."""
    return render_template(
        TEMPLATES,
        "report.html",
        {
            "deviation": compute_deviation,
            "figure": _format_figure,
            "chance": _format_chance,
            "minutes": _format_minutes,
        },
        title=report.title,
        notes=report.notes,
        report=report,
        least_range=LEAST_RANGE,
        metrics={name: TITLES[name] for name in report.shown},
        plots=_plot_sections(report),
        significant=SIGNIFICANT,
        as_started=AS_STARTED,
    )


def _format_figure(value: float) -> str:
    """Returns a figure between 0 and 1 with three decimals, of which the last is one question in a thousand."""
    return f"{value:.3f}"


def _format_chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def _format_minutes(minutes: float) -> str:
    return f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}"


def _plot_sections(report: Report) -> dict[str, str]:
    """Returns the plot of each section that has data."""
    plots = {}
    if report.rows:
        main = report.shown[0]
        marks = [row.paper[main][0] if main in row.paper else None for row in report.rows]
        values = [row.metrics[main] for row in report.rows]
        names, title = [row.name for row in report.rows], f"{TITLES[main]} on {report.measured}"
        plots["rows"] = plot_dots(names, values, marks, title, "the paper's")
    if report.curves:
        plots["curves"] = plot_trainings({row.name: _name_quantities(row) for row in report.curves})
    if report.noise:
        plots["noise"] = plot_noise({n.name: (n.shares, n.map) for n in report.noise}, f"MAP on {report.measured}")
    if report.splits:
        named = [(f"{s.split} ({s.filter})", s) for s in report.splits]
        panels = {
            "candidates per question": {name: s.candidates for name, s in named},
            "words per question": {name: s.question_words for name, s in named},
            "words per candidate": {name: s.answer_words for name, s in named},
        }
        plots["splits"] = plot_histograms(panels)
    return plots


def _name_quantities(row: Curves) -> dict[str, Sequence[Curve]]:
    out = {"training loss": row.training_loss, "MAP on dev": row.dev_map}
    return out if row.test_map is None else {**out, "MAP on test": row.test_map}
