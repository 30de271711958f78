"""An experiment or a study as one HTML page that loads nothing: figures beside the papers', curves, examples."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from data_pipeline.core.pages import render_template
from data_pipeline.core.settings import default_of
from finetune.data.answers import AnswerSet
from finetune.data.registry import get_paper_counts
from finetune.evaluation.bm25 import ABOUT, BM25
from finetune.evaluation.metrics import MAP, METRICS, TITLES, Figures, rank_rows
from finetune.evaluation.significance import SIGNIFICANT, compare_rows, drop_equal_seeds, is_established
from finetune.evaluation.trec import read_run, write_lines
from finetune.training.config import FinetuneConfig, choose_metrics, list_metrics, list_seeds
from pretrain.engine.log import complete_lines
from pretrain.engine.run_folder import SUMMARY
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model

from . import plots
from .card import AS_STARTED, AS_TRANSFERRED
from .comparison_page import TEMPLATES, ShownCandidate, pick_candidates
from .plots import LEAST_RANGE, Curve, compute_deviation
from .study_table import describe_shared_stages

TOP = 5  # candidates that an example shows
NUM_EXAMPLES = 8
ZERO_SHOT = "zero-shot cosine"  # the name of a row that no training comes before
UNSHOWN = {"output_dir", "local_rank", "save_steps", "stall_minutes", "max_skipped_steps", "log_steps", "max_hours"}
ALWAYS_SHOWN = {"model", "data", "loss", "epochs", "learning_rate", "batch_size", "max_length", "seeds", "patience"}
ALWAYS_SHOWN |= {"train_filter", "eval_filter", "precision"}


@dataclass(frozen=True)
class SplitFigures:
    """What a split holds, as ``count_split`` counts it.

    split:           its name, on a page with that of its data set before it
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


class Noise(NamedTuple):
    """The MAP of a method at K shares of flipped training labels, of every seed (Garg et al., 2020, table 5)."""

    name: str
    shares: Sequence[float]
    map: Sequence[np.ndarray]


class Example(NamedTuple):
    """A question with its best candidates, and the best right one if it ranks lower."""

    question: str
    candidates: Sequence[ShownCandidate]


class RowSettings(NamedTuple):
    """What sets a row apart, and for each seed the updates made, that after which it was best, and the minutes.
    ``at_0``: what a ranker is that was best at update 0."""

    name: str
    own: Mapping[str, object]
    updates: Sequence[int]
    best: Sequence[int]
    minutes: Sequence[float]
    at_0: str


@dataclass(frozen=True)
class Entry:
    """One experiment on the page.

    figures: for each seed, the metrics of every test question
    paper:   a paper's figures by metric
    tanda:   whether the experiment transfers first
    shares:  whether what came before its fine-tuning ran once for all its seeds
    """

    name: str
    config: FinetuneConfig
    figures: list[Figures]
    paper: dict[str, float]
    tanda: bool = False
    shares: bool = False


def write_page(
    path: Path,
    title: str,
    notes: list[str],
    splits: Sequence[tuple[AnswerSet, str]],
    entries: list[Entry],
    untrained: Mapping[str, Figures],
) -> None:
    """Writes the page of experiments that share their data.

    splits:    each with the filter that it has been through, last the one that is measured: test, or dev without one
    untrained: rows that no training comes before, BM25 mostly, with their metrics of every measured question

    Raises KinspanError where ``path`` cannot be written.
    """
    test, shown, metrics = splits[-1][0], choose_metrics(entries[0].config), list_metrics(entries[0].config)
    named: list[tuple[str, list[Figures], dict[str, float]]]
    named = [(entry.name, entry.figures, entry.paper) for entry in entries]
    named += [(name, [figures], {}) for name, figures in untrained.items()]
    shared_stages = [entry.name for entry in entries if entry.shares]
    tests = compare_rows([np.stack([seed[shown[0]] for seed in figures]) for _, figures, _ in named])
    rows = []
    for (name, figures, paper), difference in zip(named, tests, strict=True):
        of_seeds = drop_equal_seeds(
            np.stack([[seed[m] for m in metrics] for seed in figures]).reshape(len(figures), -1)
        )
        figures = figures[: len(of_seeds)]
        means = {m: np.array([seed[m].mean() for seed in figures]) for m in metrics}
        p = {shown[0]: difference["corrected"]} if difference else {}
        shares = {name, entries[0].name} & set(shared_stages)
        starred = [shown[0]] if difference and is_established(difference) and not shares else []
        rows.append(ResultRow(name, means, p, {m: (v, None) for m, v in paper.items()}, starred, name not in untrained))
    own, shared = _part_settings(entries)
    examples, examples_are = _pick_examples(test, entries)
    page = render_report(
        title=title,
        notes=[*notes, *([ABOUT] if BM25 in untrained else []), *map(describe_shared_stages, shared_stages)],
        splits=[_count_beside_paper(data, mode) for data, mode in splits],
        rows=rows,
        curves={entry.name: _read_curves(entry) for entry in entries},
        noise=_gather_noise(entries),
        examples=examples,
        examples_are=examples_are,
        settings=[_read_settings(entry, settings) for entry, settings in zip(entries, own, strict=True)],
        shared_settings=shared,
        measured=test.split,
        shown=shown,
    )
    write_lines(path, [page])


def _part_settings(entries: list[Entry]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the settings in which each experiment differs from others, and those that all share and that matter."""
    all_settings = [asdict(entry.config) for entry in entries]
    names = [name for name in all_settings[0] if name not in UNSHOWN]
    differing = [name for name in names if any(s[name] != all_settings[0][name] for s in all_settings)]
    own = [{name: _say(settings[name]) for name in differing} for settings in all_settings]
    defaults = {setting.name: default_of(setting) for setting in fields(FinetuneConfig)}
    shared = {
        name: _say(all_settings[0][name])
        for name in names
        if name not in differing and (name in ALWAYS_SHOWN or all_settings[0][name] != defaults[name])
    }
    return own, shared


def _say(value: Any) -> str:
    """Returns a setting as a reader writes it; a model that comes with the installation has a name, not a path."""
    if value == default_model():
        return DEFAULT_MODEL_NAME
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_settings(entry: Entry, own: dict[str, Any]) -> RowSettings:
    """Returns the row of an experiment in the table of settings; a seed whose summary cannot be read is left out."""
    summaries = []
    for seed in list_seeds(entry.config):
        with suppress(KinspanError):
            summaries.append(read_object(Path(entry.config.output_dir) / f"seed-{seed}" / SUMMARY, ""))
    return RowSettings(
        entry.name,
        own,
        [summary["steps"] for summary in summaries],
        [summary["best_step"] for summary in summaries],
        [summary["wall_seconds"] / 60 for summary in summaries],
        AS_TRANSFERRED if entry.config.transfer else AS_STARTED,
    )


def _count_beside_paper(data: AnswerSet, mode: str) -> SplitFigures:
    papers = get_paper_counts(data, mode)
    paper = papers[0] if papers else None
    counted = count_split(data, mode, paper.questions if paper else None, paper.pairs if paper else None)
    return replace(counted, split=f"{data.name} {data.split}")  # that of a transfer is called train too


def read_curve(folder: Path, split: str, figure: str, over: str = "step") -> Curve:
    """Returns how a figure of a run's ``metrics.jsonl`` went, the start included, over the steps or epochs."""
    lines = [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
    lines = [line for line in lines if line["split"] == split and figure in line]
    return np.array([line[over] for line in lines]), np.array([line[figure] for line in lines])


def _read_curves(entry: Entry) -> dict[str, list[Curve]]:
    folders = [Path(entry.config.output_dir) / f"seed-{seed}" for seed in list_seeds(entry.config)]
    quantities = {"training loss": ("train", "loss"), "MAP on dev": ("dev", MAP)}
    if entry.config.test_every_validation:  # shows how stable fine-tuning is (Garg et al., 2020, figure 4)
        quantities["MAP on test"] = ("test", MAP)
    return {name: [read_curve(folder, *which) for folder in folders] for name, which in quantities.items()}


def _gather_noise(entries: list[Entry]) -> list[Noise]:
    """Returns a curve for fine-tuning and one for TANDA, if any experiment flips labels."""
    if not any(entry.config.label_noise for entry in entries):
        return []
    lines = []
    for name, tanda in (("fine-tuning", False), ("TANDA", True)):
        own = sorted((e for e in entries if e.tanda == tanda), key=lambda e: e.config.label_noise)
        if own:
            maps = [np.array([seed[MAP].mean() for seed in e.figures]) for e in own]
            lines.append(Noise(name, [e.config.label_noise for e in own], maps))
    return lines


def _pick_examples(test: AnswerSet, entries: list[Entry]) -> tuple[list[Example], str]:
    """Picks the questions on which the last experiment, with its first seed, gains most; of a single one, the worst.

    Returns also what a reader must know of them: whose ranking it is, and how they were chosen.
    """
    first, last = entries[0], entries[-1]
    own = last.figures[0][MAP]
    gain = own - first.figures[0][MAP] if len(entries) > 1 else -own
    seed = list_seeds(last.config)[0]
    run = read_run(Path(last.config.output_dir) / f"seed-{seed}" / test.split / "run.txt")
    of_question = (test.question_ids[q] for q in test.question_of)
    scores = np.array([run[q][a] for q, a in zip(of_question, test.answer_ids.to_pylist(), strict=True)])
    chosen = np.argsort(-gain, kind="stable")[:NUM_EXAMPLES].tolist()
    how = f"most above that of {first.name}" if len(entries) > 1 else "lowest"
    words = (
        f"The ranking is that of {last.name}, seed {seed}. Of {test.num_questions:,} {test.split} questions these are "
        f"the {len(chosen)} whose average precision is {how}: they are chosen, and do not show how it does on average."
    )
    return pick_examples(test, scores, chosen), words


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


def render_report(
    title: str,
    notes: Sequence[str] = (),
    splits: Sequence[SplitFigures] = (),
    rows: Sequence[ResultRow] = (),
    curves: Mapping[str, Mapping[str, Sequence[Curve]]] | None = None,
    noise: Sequence[Noise] = (),
    examples: Sequence[Example] = (),
    examples_are: str = "",
    settings: Sequence[RowSettings] = (),
    shared_settings: Mapping[str, object] | None = None,
    measured: str = "test",
    shown: Sequence[str] = METRICS,
) -> str:
    """Returns the HTML of a report; a section without content is left out. Texts are escaped, and it loads nothing.

    notes:           what a reader must know of the data and the settings, a line each
    curves:          by row and quantity, of each seed; early stopping makes some shorter
    examples_are:    whose ranking the examples show, and how they were chosen
    shared_settings: those of all rows
    measured:        the split that the rows, the noise and the examples are of
    shown:           the metrics of its table
    """
    drawn, named = {}, [(f"{s.split} ({s.filter})", s) for s in splits]
    if rows:
        main = shown[0]
        marks = [row.paper[main][0] if main in row.paper else None for row in rows]
        values, label = [row.metrics[main] for row in rows], f"{TITLES[main]} on {measured}"
        drawn["rows"] = plots.plot_dots([row.name for row in rows], values, marks, label, "the paper's")
    if curves:
        drawn["curves"] = plots.plot_trainings(curves)
    if noise:
        drawn["noise"] = plots.plot_noise({n.name: (n.shares, n.map) for n in noise}, f"MAP on {measured}")
    if splits:
        panels = {
            "candidates per question": {name: s.candidates for name, s in named},
            "words per question": {name: s.question_words for name, s in named},
            "words per candidate": {name: s.answer_words for name, s in named},
        }
        drawn["splits"] = plots.plot_histograms(panels)
    return render_template(
        TEMPLATES,
        "report.html",
        {
            "deviation": compute_deviation,
            "figure": _format_figure,
            "chance": _format_chance,
            "minutes": _format_minutes,
        },
        title=title,
        notes=notes,
        splits=splits,
        rows=rows,
        noise=noise,
        examples=examples,
        examples_are=examples_are,
        settings=settings,
        shared_settings=shared_settings or {},
        measured=measured,
        least_range=LEAST_RANGE,
        metrics={name: TITLES[name] for name in shown},
        plots=drawn,
        significant=SIGNIFICANT,
    )


def _format_figure(value: float) -> str:
    """Returns a figure between 0 and 1 with three decimals, of which the last is one question in a thousand."""
    return f"{value:.3f}"


def _format_chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def _format_minutes(minutes: float) -> str:
    return f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}"
