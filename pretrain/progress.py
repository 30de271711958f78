"""Where a pre-training run stands: what its checkpoints keep of the training loop."""

from dataclasses import dataclass, field

from . import loop


@dataclass
class RunProgress(loop.Progress):
    """All that a checkpoint keeps beside DeepSpeed's state; the window is by ``sum_names`` of the model.

    tokens:   that were trained on so far, by all ranks
    losses:   those of the last lines of the log, in which recovery.is_spike finds spikes
    left_out: the first and the last batch of each stretch that no step trains on, since the loss leapt there
    rewinds:  how often the run went back to an earlier checkpoint
    """

    tokens: int = 0
    losses: list[float] = field(default_factory=list)
    left_out: list[list[int]] = field(default_factory=list)
    rewinds: int = 0
