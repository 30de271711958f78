"""Where a run stands: what its checkpoints keep of the training loop."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """All that a checkpoint keeps beside DeepSpeed's state. It is the same on all ranks, except ``wall_seconds``.

    step:           updates so far
    tokens:         that were trained on so far, by all ranks
    wall_seconds:   spent in the training loop, over all starts of the run
    world_size:     number of ranks
    window:         the sums of all ranks since the last line of the log, by ``sum_names`` of the model
    due:            this step was not measured yet, although it was due, because the run was asked to stop
    skipped:        updates that were skipped because a loss or gradient was not finite
    skipped_in_row: how many of them were the latest, without another update between
    losses:         those of the last lines of the log, in which recovery.is_spike finds spikes
    left_out:       the first and the last batch of each stretch that no step trains on, since the loss leapt there
    rewinds:        how often the run went back to an earlier checkpoint
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
