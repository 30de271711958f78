"""A fine-tuning study as one HTML page that needs nothing else: figures beside the papers', curves, examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MAP, METRICS, TITLES, rank_rows
from finetune.evaluation.trec import write_lines

from .pages import ShownCandidate, pick_candidates, render_template
from .plots import compute_deviation, plot_curves, plot_dots, plot_histograms, plot_noise

SIGNIFICANT = 0.05  # as Di Liello et al., 2022, table 1
TOP = 5  # candidates shown of an example


@dataclass(frozen=True)
class SplitFigures:
    """What a split holds, as ``split_figures`` counts it.

    filter:          as of ``answers.filtered``
    question_words:  ``[Q]`` words of each question
    answer_words:    ``[N]`` words of each candidate
    candidates:      ``[Q]`` of each question
    paper_questions: how many a paper counts, where it says so
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

    metrics: of each metric of ``metrics.METRICS``, ``[S]``
    p:       of a metric, that of the difference from the report's first row
    paper:   of a metric, a paper's mean and standard deviation, or None where it gives none
    """

    name: str
    metrics: Mapping[str, np.ndarray]
    p: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """A row's quantities at each validation, ``[E]`` of each seed; E may differ, where a run stopped early.

    test_map: where it was measured: how stable fine-tuning is (Garg et al., 2020, figure 4)
    """

    name: str
    training_loss: Sequence[np.ndarray]
    dev_map: Sequence[np.ndarray]
    test_map: Sequence[np.ndarray] | None = None


@dataclass(frozen=True)
class Noise:
    """MAP of a method by the share of training labels that were flipped (Garg et al., 2020, table 5).

    shares: ``[K]``
    map:    of each share ``[S]``
    """

    name: str
    shares: Sequence[float]
    map: Sequence[np.ndarray]


@dataclass(frozen=True)
class Example:
    """A question with its first candidates, and the best right one if it comes later."""

    question: str
    candidates: Sequence[ShownCandidate]


@dataclass(frozen=True)
class Report:
    """A page; what is empty is left out.

    notes: what a reader must know of the data and the settings, a line each
    """

    title: str
    notes: Sequence[str] = ()
    splits: Sequence[SplitFigures] = ()
    rows: Sequence[ResultRow] = ()
    curves: Sequence[Curves] = ()
    noise: Sequence[Noise] = ()
    examples: Sequence[Example] = ()


def count_split(
    data: AnswerSet, mode: str, paper_questions: int | None = None, paper_pairs: int | None = None
) -> SplitFigures:
    """Counts of ``data``, which ``mode`` has been filtered by. A word is what white space delimits."""
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
    """Of these questions, by number, the candidates that ``scores`` ``[N]`` rank first.

    Raises KinspanError for a score that is not finite.
    """
    order = rank_rows(data, scores)
    return [Example(data.questions[q], pick_candidates(data, scores, order, q, top)) for q in questions]


def write_report(path: Path, report: Report) -> None:
    """Writes the page. Raises KinspanError where ``path`` cannot be written."""
    write_lines(path, [render_report(report)])


def render_report(report: Report) -> str:
    """The HTML of a report. Texts are escaped, plots are part of it, and it loads nothing."""
    return render_template(
        "report.html",
        {"deviation": compute_deviation, "figure": format_figure, "chance": format_chance},
        report=report,
        metrics=TITLES,
        plots=_plots(report),
        significant=SIGNIFICANT,
    )


def format_figure(value: float) -> str:
    """A figure between 0 and 1 to three decimals: one question of a thousand moves it."""
    return f"{value:.3f}"


def format_chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def _plots(report: Report) -> dict[str, str]:
    """SVG by section; a section without data has none."""
    plots = {}
    if report.rows:
        marks = [row.paper[MAP][0] if MAP in row.paper else None for row in report.rows]
        values = [row.metrics[MAP] for row in report.rows]
        plots["rows"] = plot_dots([row.name for row in report.rows], values, marks, "MAP on test", "the paper's")
    if report.curves:
        plots["curves"] = plot_curves({row.name: _quantities(row) for row in report.curves})
    if report.noise:
        plots["noise"] = plot_noise({n.name: (n.shares, n.map) for n in report.noise}, "MAP on test")
    if report.splits:
        named = [(f"{s.split} ({s.filter})", s) for s in report.splits]
        panels = {
            "candidates of a question": {name: s.candidates for name, s in named},
            "words of a question": {name: s.question_words for name, s in named},
            "words of a candidate": {name: s.answer_words for name, s in named},
        }
        plots["splits"] = plot_histograms(panels)
    return plots


def _quantities(row: Curves) -> dict[str, Sequence[np.ndarray]]:
    out = {"training loss": row.training_loss, "MAP on dev": row.dev_map}
    return out if row.test_map is None else {**out, "MAP on test": row.test_map}


assert set(TITLES) == set(METRICS)
