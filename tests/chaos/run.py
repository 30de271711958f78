"""Kills, damages and starves runs, starts them again, and compares how they end with runs that nothing happened to."""

import os
import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos import trials

_HERE = Path(__file__).resolve().parent
ROOT = _HERE.parents[1]
sys.path[:] = [str(ROOT)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

DESCRIPTION = """Proves that the same command again continues from the last complete checkpoint, and that the run then
ends exactly as if nothing had happened, or that it refuses in one line that names the reason.

kills:     a random signal (kill -9, TERM, INT, USR1, or two of them) at a random moment, often inside checkpointing, to
           a rank, to DeepSpeed's launchers or to all; again and again, until the run ends. Its weights, log and state
           must be, bit for bit, those of a run that nothing happened to.
damage:    each file of a checkpoint truncated, emptied, bit-flipped or removed: the older checkpoint is resumed from.
injected:  NaN, a rank that stalls or is frozen, a full disk.

Status 1: a trial failed; its runs and logs stay in --work."""

PARTS = ("kills", "damage", "injected")
MOST_KILLS = 6  # of a run, which is then left to end
LAUNCHERS = ("deepspeed", "hand", "hand")  # drawn at random


def read_flags() -> Namespace:
    parser = ArgumentParser(description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="A few of each part.")
    parser.add_argument("--kills", type=int, default=200, help="Kills in all.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="Parts to run.")
    parser.add_argument("--seed", type=int, default=1, help="Of moments, signals and ranks.")
    parser.add_argument("--work", type=Path, help="Folder for everything. Default: one in the temporary folder.")
    return parser.parse_args()


def main() -> int:
    options = read_flags()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.chdir(ROOT)
    from tests.chaos import report, starts, trials

    work = (options.work or Path(tempfile.mkdtemp(prefix="chaos-"))).resolve()
    print(f"in {work}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores the first for what it starts in the background
        signal.signal(number, signal.default_int_handler)
    ended: list[trials.Trial] = []
    try:
        for trial in run_trials(options, work):
            ended.append(trial)
            print(f"{trial.what} {trial.name}: {'; '.join(trial.wrong) or 'ok'}", flush=True)
    finally:
        for start in list(starts.LIVE):
            start.end()
        print("\n" + report.make_table(ended), flush=True)
    return int(any(trial.wrong for trial in ended) or not ended)


def run_trials(options: Namespace, work: Path) -> Iterator["trials.Trial"]:
    from tests.chaos import injected, trials
    from tests.chaos.materials import all_cells

    arena = trials.Arena(work, ("hand",) if options.short else LAUNCHERS)
    if options.short:
        arena.steps = 20
    arena.materials.make()
    if options.short:
        yield from injected.short(arena, options.seed)
        return
    number = killed = 0
    while "kills" in options.only and killed < options.kills:
        yield (trial := trials.kills(arena, number, options.seed, all_cells(), MOST_KILLS))
        number, killed = number + 1, killed + sum(start.struck for start in trial.starts)
    for part in options.only:
        for make in injected.PARTS.get(part, ()):
            yield make(arena)


if __name__ == "__main__":
    sys.exit(main())
