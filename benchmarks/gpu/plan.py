"""What ``make gpu`` runs, in which order, and how long each check should take on an H100. Standard library only."""

from collections.abc import Iterable
from dataclasses import dataclass

BUDGET = 720.0  # seconds of the whole command
# Seconds: a process until it has imported all; a run until its first update; the updates that a figure stands on, which
# are a dozen of 97,000 tokens at a predicted 600,000 per second, and what warms them up; compiling a base model.
START, BUILD, FIGURE, COMPILE = 15.0, 6.0, 5.0, 80.0
LATEST = 2.0  # a check that takes so many times its estimate is ended


@dataclass(frozen=True)
class Check:
    """One check.

    name:     how the report calls it
    function: ``module:function`` of benchmarks.gpu, and arguments after more colons: a generator of rows, see worker.py
    seconds:  that it should take
    reserved: the checks before it leave it these seconds
    """

    name: str
    function: str
    seconds: float
    reserved: float = 0.0


def estimate(starts: int = 0, runs: int = 0, figures: int = 0, compiled: float = 0, other: float = 0) -> float:
    """Seconds of a check.

    starts:   processes that start one after another. A check that has the device alone starts while the one before runs
    compiled: models that are compiled
    """
    return starts * START + runs * BUILD + figures * FIGURE + compiled * COMPILE + other


# What needs the device for itself alone comes after the rest. The most important is first, since what is killed keeps
# what it has measured.
STAGES = (
    (
        Check("packed against padded", "correctness:compare_families", estimate(starts=1, other=20)),
        Check("losses on GPU and CPU", "correctness:compare_losses", estimate(starts=2, runs=1, other=40)),
        Check("the same run twice", "correctness:repeat", estimate(starts=2, runs=1, other=40)),
        Check("kill -9 and resume", "correctness:kill_and_resume", estimate(starts=3, runs=2, other=30)),
        Check("updates", "updates:compare_updates", estimate(starts=1, runs=8, other=25)),
        Check("compiled against eager", "updates:compare_compiled", estimate(starts=1, runs=2, compiled=0.6)),
    ),
    (
        Check("dose", "dose:measure_dose", estimate(starts=3, other=290)),
        Check("two ranks on one GPU", "ranks:compare_ranks", estimate(starts=2, runs=4, other=20)),
    ),
    (Check("machine", "speed:measure_machine", estimate(other=6)),),
    (Check("RoBERTa-base, compiled", "speed:measure_compiled:roberta-base", estimate(runs=2, figures=2, compiled=1)),),
    (Check("ModernBERT-base, compiled", "speed:measure_compiled:modernbert-base", estimate(runs=1, compiled=1)),),
    (Check("time of the host", "speed:measure_host", estimate(runs=2, figures=2)),),
    (Check("RoBERTa-base", "speed:sweep:roberta-base", estimate(runs=2, figures=2)),),
    (Check("where the host waits", "waits:count_waits", estimate(runs=1, other=14)),),
    (Check("RoBERTa-base, layers", "speed:measure_layers", estimate(runs=1, figures=1, compiled=0.5)),),
    (Check("MiniLM-L6", "speed:sweep:minilm-l6", estimate(runs=2, figures=2)),),
    (Check("ELECTRA-base", "speed:sweep:electra-base", estimate(runs=1, figures=1, other=6)),),
    (Check("ModernBERT-base", "speed:sweep:modernbert-base", estimate(runs=1, figures=1, other=6)),),
    (Check("the Trainer, RoBERTa-base", "speed:measure_trainer", estimate(runs=1, figures=2, other=10)),),
)
NAMES = [check.name for stage in STAGES for check in stage]


def sum_seconds(stages: Iterable[Iterable[Check]]) -> float:
    """Seconds of stages whose checks run at once."""
    return sum(max((check.seconds for check in stage), default=0.0) for stage in stages)
