"""Measuring the model while it trains: validation on held-out pairs."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import describe_write_error, write_atomically
from data_pipeline.sampling.describe import describe_pairs
from data_pipeline.sampling.pairs import KINDS
from pretrain.engine.history import estimate_speed, format_clock, read_history
from pretrain.engine.log import format_time, read_metrics
from pretrain.evaluation.page import Progress, render_page
from pretrain.evaluation.validation import Validation, evaluate, evaluate_retrieval
from pretrain.release.card import find_warnings

from .state import Run

PAGE = "report.html"
PAGE_SECONDS = 60.0  # between two pages of a run under way
PAGE_COST = 50  # times as long as the last page took, at least: pages take a fiftieth of a run's time
PAIRS_SHOWN = 3  # on the page, of each kind
SEARCHED = 15  # pairs of each part of a mixture among which they are found: three anchors
MOST_SEARCHED = 90


def measure(run: Run) -> None:
    """Validates where this step is due for it, as the last step always is."""
    config, step = run.setup.config, run.progress.step
    is_last = step == run.setup.total_steps
    validated = validate(run) if step % config.eval_steps == 0 or is_last else None
    if validated:
        run.validated = step, validated
    if run.log and (step % config.eval_steps == 0 or is_last):
        write_page(run, under_way=not is_last)
    if run.log and is_last:
        for text in find_warnings(list_facts(run)):
            run.say(f"warning: {text}")


def validate(run: Run) -> Validation | None:
    """Logs the figures of the held-out pairs; None where there are no such pairs."""
    config, setup = run.setup.config, run.setup
    if setup.validation_stream is None:
        return None
    validated = (evaluate_retrieval if config.pair_loss else evaluate)(
        run.engine,
        setup.validation_stream,
        config.eval_pairs,
        setup.layout,
        setup.rank,
        run.weights,
        run.watch.mark,
    )
    if run.log:
        run.log.write(run.progress.step, "validation", validated.figures)
    return validated


def list_facts(run: Run) -> dict[str, Any]:
    """What run.json says of the run, and the figures of the last validation since this start."""
    step, validated = run.validated or (0, None)
    return {**run.setup.facts, "last_validation": [{"step": step, **validated.figures}] if validated else []}


def refresh_page(run: Run) -> None:
    """Writes the page anew where it is due."""
    if run.log and time.monotonic() >= run.page_due:
        write_page(run, under_way=True)


def write_page(run: Run, under_way: bool) -> None:
    """Writes report.html. Training goes on where it cannot be written, or what it shows cannot be read."""
    setup, folder, began = run.setup, run.setup.folder, time.monotonic()
    facts, wait = list_facts(run), max(PAGE_SECONDS, PAGE_COST * run.page_took)
    title = f"{facts['model']['name']}, {setup.config.objective}: pre-training"
    help_of = {setting.name: setting.metadata["help"] for setting in fields(setup.config)}
    try:
        lines, history = read_metrics(folder), read_history(folder)
        warnings = find_warnings(facts) if not under_way and run.progress.step == setup.total_steps else []
        progress = describe_progress(run, history, wait if under_way else None)
        page = render_page(title, facts, lines, show_pairs(run), warnings, history, progress, help_of)
        write_atomically(folder / PAGE, page)
    except (OSError, KinspanError) as error:
        run.say(f"{describe_write_error(folder / PAGE, error)}; training goes on")
    run.page_due, run.page_took = began + wait, time.monotonic() - began


def describe_progress(run: Run, history: Sequence[Mapping[str, Any]], wait: float | None) -> Progress:
    """How far the run is. The next page is due at the line of the log after ``wait`` seconds; None: there is none."""
    now, step = time.time(), run.progress.step
    rate = estimate_speed(history, step, now)
    left = format_time((run.setup.total_steps - step) / rate) if rate else ""
    due = None if wait is None else format_clock(now + wait + (run.log_steps / rate if rate else PAGE_SECONDS))
    return Progress(step, run.progress.tokens, rate, left, format_clock(now), due, str(run.setup.folder))


def show_pairs(run: Run) -> list[dict[str, Any]]:
    """A few held-out pairs of each kind in words, with the logits of the last validation; read once per start."""
    stream, validated = run.setup.validation_stream, run.validated and run.validated[1]
    if stream is None or validated is None:
        return []
    if run.shown is None:
        count = min(SEARCHED * sum(stream.mixture.weights), MOST_SEARCHED, len(validated.logits))
        run.shown = pick_pairs(describe_pairs(stream, run.setup.tokenizer, 0, count))
    if run.setup.config.pair_loss:
        return [{**pair, "cosine": float(validated.logits[pair["index"]])} for pair in run.shown]
    trained = run.setup.config.pair_weight > 0
    return [{**pair, "logit": float(validated.logits[pair["index"]]) if trained else None} for pair in run.shown]


def pick_pairs(described: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first PAIRS_SHOWN of each kind, and of a mixture of each part; positives first."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for pair in described:
        group = groups.setdefault((pair.get("corpus", ""), pair["objective"], KINDS.index(pair["kind"])), [])
        if len(group) < PAIRS_SHOWN:
            group.append(pair)
    return [pair for key in sorted(groups) for pair in groups[key]]
