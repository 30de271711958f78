"""Measuring the model while it trains: validation on held-out pairs, and the probe."""

import shutil

from pretrain.checkpoints.capture import full_weights
from pretrain.evaluation.validation import evaluate
from pretrain.release.release import write_release

from .runtime import ranks
from .state import Run


def measure(run: Run) -> None:
    """Validates and probes where this step is due for it; both are due at the last step, too."""
    config, step = run.setup.config, run.progress.step
    is_last = step == run.setup.total_steps
    if step % config.eval_steps == 0 or is_last:
        validate(run)
    if config.probe and (step % config.probe_steps == 0 or is_last):
        run_probe(run)
    run.progress.due = False


def validate(run: Run) -> None:
    """Logs the figures of the held-out pairs, where there are any."""
    config, setup = run.setup.config, run.setup
    if setup.validation is None:
        return
    values = evaluate(
        run.engine,
        setup.validation,
        config.eval_pairs,
        config.micro_batch_size,
        setup.rank,
        setup.layout.world,
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
    ranks.barrier()
