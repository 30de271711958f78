"""What a run does about updates that were skipped, and about a loss that leaps."""

import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from data_pipeline.core.errors import KinspanError
from pretrain.checkpoints.elastic import convert_to_universal
from pretrain.checkpoints.reader import newest_on_all_ranks, remove_later
from pretrain.engine import ranks
from pretrain.engine.device_update import is_ordinary_overflow
from pretrain.engine.history import LEAPT, REWOUND, SKIPPED
from pretrain.engine.run_folder import CHECKPOINTS

from .batches import find_batch
from .config import PretrainConfig
from .state import Run, close_run, load, open_run

HISTORY = 20  # lines of the log that a loss is compared with
LEVEL = 5  # the last so many of them tell where the loss stands
MIN_HISTORY = 8  # with a shorter history, no loss counts as a spike
DEVIATIONS = 6.0  # of normal changes from line to line, one in 10^9 is larger
MIN_LEAP = 0.1  # of the loss: where lines hardly differ, a smaller leap is noise
MAX_REWINDS = 5
# Which pairs a run sees, beside its corpora, objective and seed
PAIR_SETTINGS = ("max_length", "sampling", "corpus_schedule", "forums", "min_questions", "pair_loss", "own_negatives")


def tell_skipped(run: Run, step: int) -> None:
    """Says which examples were in an update that was skipped."""
    config, progress, size = run.setup.config, run.progress, run.setup.layout.size
    if not run.log:
        return
    first = find_batch(step, progress.left_out) * size
    run.log.write(step + 1, "skipped", {"skipped_steps": progress.skipped, "example": first, "count": size})
    run.note(SKIPPED, step + 1, example=first, count=size)
    if not is_ordinary_overflow(run.setup.facts["precision"], progress.skipped_in_row):
        default = PretrainConfig()
        names = [name for name in PAIR_SETTINGS if getattr(config, name) != getattr(default, name)]
        names += ["global_batch_size"] if config.corpus_schedule else []
        run.say(
            f"step {step}: a loss or gradient was not finite, and the update was skipped on all ranks; to see its "
            f"pairs: kinspan show pairs --start {first} --count {size} --seed {config.seed} --objective "
            f"{config.objective}, with this run's {', '.join(f'--{name}' for name in ('corpus', *names))}"
        )


def look_for_spike(run: Run, loss: float) -> None:
    """Compares the loss of a line of the log with those before, and does about a spike what ``--on_spike`` says."""
    config, progress = run.setup.config, run.progress
    before, progress.losses = progress.losses, [*progress.losses, loss][-HISTORY:]
    if config.on_spike == "ignore" or not is_spike(loss, before):
        return
    run.note(LEAPT, loss=loss, before=before[-1])
    run.say(f"step {progress.step}: the loss leapt to {loss:.3f}, from {before[-1]:.3f}")
    if config.on_spike == "rewind":
        rewind(run)


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Whether a loss exceeds the median of the last few by more than the usual change from one line to the next."""
    recent = before[-HISTORY:]
    if len(recent) < MIN_HISTORY:
        return False
    level = statistics.median(recent[-LEVEL:])
    change = 1.4826 * statistics.median(abs(b - a) for a, b in pairwise(recent))  # a normal distribution's deviation
    return loss > level + max(DEVIATIONS * change, MIN_LEAP * abs(level))


def rewind(run: Run) -> None:
    """Goes back to the newest checkpoint before the last line of the log, and leaves out the batches of that line.

    Without such a checkpoint training goes on. Raises KinspanError after ``MAX_REWINDS`` rewinds.
    """
    progress, setup = run.progress, run.setup
    run.watch.mark(f"going back from step {progress.step}", patient=True)
    first = (progress.step - 1) // setup.config.log_steps * setup.config.log_steps  # step of the line
    run.writer.join()
    checkpoints = setup.folder / CHECKPOINTS
    found, _ = newest_on_all_ranks(checkpoints, first)
    if found is None:
        run.say("no checkpoint is older than the spike: training continues without rewinding")
        return
    if progress.rewinds >= MAX_REWINDS:
        raise KinspanError(
            f"the loss leapt again at step {progress.step}, after {MAX_REWINDS} rewinds: lower --learning_rate, "
            "with another --output_dir"
        )
    out = [find_batch(step, progress.left_out) for step in (first, progress.step - 1)]
    left_out = [old for old in progress.left_out if not out[0] <= old[0] <= out[1]] + [out]
    waited, leapt_at = run.feeder.waited, progress.step
    close_run(run)
    load(run, found, convert_to_universal(found, setup.layout.world, setup.rank))
    run.progress.left_out, run.progress.rewinds = left_out, progress.rewinds + 1
    for folder in (checkpoints, setup.folder / "releases"):
        ranks.broadcast_from_rank_0(partial(remove_later, folder, run.progress.step))
    open_run(run)
    run.feeder.waited = waited
    run.note(REWOUND, leapt_at=leapt_at, left_out=out)
    run.say(f"went back to {found}; batches {out[0]} to {out[1]} are left out")
