"""Where tasks are to run, as the user says it."""

from dataclasses import dataclass

from data_pipeline.errors import KinspanError

NEEDED_SBATCH = ("partition", "time")  # that Slurm's executor cannot do without
SBATCH_EXAMPLE = "--sbatch partition=cpu time=08:00:00 account=nlp"


@dataclass(frozen=True)
class Execution:
    """Where tasks run.

    executor:    local, slurm or ray
    num_workers: tasks that run at the same time
    sbatch:      what Slurm's jobs ask for: partition, time, and any other of sbatch's options
    """

    executor: str
    num_workers: int
    sbatch: dict[str, str]


def parse_sbatch(options: list[str]) -> dict[str, str]:
    """Parse ``partition=cpu time=08:00:00``. Raises KinspanError where one is malformed or a needed one is missing."""
    pairs = [option.partition("=") for option in options]
    if wrong := [option for option, (name, _, value) in zip(options, pairs, strict=True) if not (name and value)]:
        raise KinspanError(f"--sbatch {wrong[0]}: write NAME=VALUE, such as partition=cpu")
    asked = {name: value for name, _, value in pairs}
    if missing := [name for name in NEEDED_SBATCH if name not in asked]:
        raise KinspanError(f"--executor slurm: give --sbatch {missing[0]}=..., too; for example {SBATCH_EXAMPLE}")
    return asked
