"""What a run does about updates that were skipped, and about a loss that leaps."""

import logging
import statistics
from collections.abc import Sequence
from itertools import pairwise

from pretrain.engine.device_update import is_ordinary_overflow
from pretrain.engine.history import LEAPT, SKIPPED

from .config import PretrainConfig
from .state import Run

log = logging.getLogger(__name__)
HISTORY = 20  # lines of the log that a loss is compared with
LEVEL = 5  # the last so many of them tell where the loss stands
MIN_HISTORY = 8  # with a shorter history, no loss counts as a spike
DEVIATIONS = 6.0  # of normal changes from line to line, one in 10^9 is larger
MIN_LEAP = 0.1  # of the loss: where lines hardly differ, a smaller leap is noise
# Which pairs a run sees, beside its corpora, objective and seed
PAIR_SETTINGS = ("max_length", "sampling", "corpus_schedule", "forums", "min_questions", "pair_loss", "own_negatives")


def tell_skipped(run: Run, step: int) -> None:
    """Says which examples were in an update that was skipped."""
    config, progress, size = run.setup.config, run.progress, run.setup.layout.size
    if not run.log:
        return
    first = step * size
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
    """Compares the loss of a line of the log with those before, and warns of a spike."""
    progress = run.progress
    before, progress.losses = progress.losses, [*progress.losses, loss][-HISTORY:]
    if is_spike(loss, before):
        run.note(LEAPT, loss=loss, before=before[-1])
        log.warning("step %d: the loss leapt from %.3f to %.3f", progress.step, before[-1], loss)


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Whether a loss exceeds the median of the last few by more than the usual change from one line to the next."""
    recent = before[-HISTORY:]
    if len(recent) < MIN_HISTORY:
        return False
    level = statistics.median(recent[-LEVEL:])
    change = 1.4826 * statistics.median(abs(b - a) for a, b in pairwise(recent))  # a normal distribution's deviation
    return loss > level + max(DEVIATIONS * change, MIN_LEAP * abs(level))
