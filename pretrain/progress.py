"""Where a run stands."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """All that a checkpoint keeps beside DeepSpeed's state; the same on all ranks but for wall_seconds.

    window:         the model's sums (see sums.py) since the last line of the log; on resume rank 0 has them all
    due:            the run was stopped before it measured what is measured at this step
    skipped:        updates that were skipped, for a loss or gradient was not finite
    skipped_in_row: the last so many of them
    losses:         of the last lines of the log, for guard.is_spike
    left_out:       batches that no step trains on, first and last of each leap of the loss
    rewinds:        how often the run went back
    """

    step: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    world_size: int = 1
    window: list[float] = field(default_factory=list)
    due: bool = False
    skipped: int = 0
    skipped_in_row: int = 0
    losses: list[float] = field(default_factory=list)
    left_out: list[list[int]] = field(default_factory=list)
    rewinds: int = 0
