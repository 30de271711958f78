"""Measuring the model while it trains: validation on held-out pairs, and the probe."""

import json
import shutil
from pathlib import Path
from typing import Any

from data_pipeline.files import describe_write_error, write_atomically
from data_pipeline.sampling.describe import describe_pairs
from pretrain.checkpoints.capture import full_weights
from pretrain.evaluation.page import render_page
from pretrain.evaluation.probe_warning import find_fall
from pretrain.evaluation.validation import evaluate
from pretrain.release.card import find_warnings
from pretrain.release.release import write_release
from pretrain.runtime.log import complete_lines

from .runtime import ranks
from .state import Run

PAGE = "report.html"
PAIRS_SHOWN = 10  # on the page


def measure(run: Run) -> None:
    """Validates and probes where this step is due for it; both are due at the last step, too."""
    config, step = run.setup.config, run.progress.step
    is_last = step == run.setup.total_steps
    if step % config.eval_steps == 0 or is_last:
        validate(run)
    if config.probe and (step % config.probe_steps == 0 or is_last):
        run_probe(run)
    if run.log and (step % config.eval_steps == 0 or is_last):
        write_page(run)
    run.progress.due = False


def validate(run: Run) -> None:
    """Logs the figures of the held-out pairs, where there are any."""
    config, setup = run.setup.config, run.setup
    if setup.validation_stream is None:
        return
    values = evaluate(
        run.engine,
        setup.validation_stream,
        config.eval_pairs,
        setup.layout,
        setup.rank,
        run.weights,
        run.watch.mark,
    )
    if run.log:
        run.log.write(run.progress.step, "validation", values)


def run_probe(run: Run) -> None:
    """Rank 0's probe measures a temporary release of this step, while the other ranks wait.

    The probe leaves no trace in the run: dropout is seeded anew for each micro-batch.
    """
    step, folder = run.progress.step, run.setup.folder / "probe"
    run.watch.mark(f"the probe of step {step}", patient=True)
    weights = full_weights(run.engine)
    if run.probe and run.log:
        write_release(run.setup.folder, weights, step, folder)
        del weights
        values = run.probe(folder)
        shutil.rmtree(folder)
        run.log.write(step, "probe", values)
        if fall := find_fall(read_lines(folder.parent)):
            run.say(f"warning: {fall}")
    ranks.barrier()


def write_page(run: Run) -> None:
    """Writes report.html. Training goes on where it cannot be written."""
    setup, folder = run.setup, run.setup.folder
    lines = read_lines(folder)
    validation = [line for line in lines if line["split"] == "validation"]
    facts = {**setup.facts, "last_validation": validation[-1:]}
    warnings = find_warnings(facts) if run.progress.step == setup.total_steps else []
    held_out = setup.validation_stream
    shown = list(describe_pairs(held_out, setup.tokenizer, 0, PAIRS_SHOWN)) if held_out else []
    title = f"{facts['model']['name']}, {setup.config.objective}: pre-training"
    on_page = [*warnings, *filter(None, [find_fall(lines)])]  # the fall was said when it was probed
    try:
        write_atomically(folder / PAGE, render_page(title, facts, lines, shown, on_page))
    except OSError as error:
        run.say(f"{describe_write_error(folder / PAGE, error)}; training goes on")
    for text in warnings:
        run.say(f"warning: {text}")


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of the run's metrics.jsonl."""
    return [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
