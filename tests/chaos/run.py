"""Kills, damages and starves runs, starts them again, and compares how they end with runs that nothing happened to."""

import os
import signal
import sys
import tempfile
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

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

Each trial is appended to WORK/results.jsonl; the same command again goes on after the last one. Status 1: a trial
failed; its runs and logs stay in --work."""

PARTS = ("kills", "damage", "injected")
MOST_KILLS = 6  # of a run, which is then left to end
LAUNCHERS = ("deepspeed", "hand", "hand")  # drawn at random


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    pass


def read_flags() -> Namespace:
    parser = ArgumentParser(description=DESCRIPTION, formatter_class=_Formatter, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="A few of each part.")
    parser.add_argument("--kills", type=int, default=200, help="Kills in all, those in the results counted.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="Parts to run, in this order.")
    parser.add_argument("--seed", type=int, default=1, help="Of moments, signals and ranks.")
    parser.add_argument("--work", type=Path, help="Folder for everything. Default: one in the temporary folder.")
    parser.add_argument("--elastic", action="store_true", help="Change the number of ranks at each start, too.")
    return parser.parse_args()


def main() -> int:
    options = read_flags()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.chdir(ROOT)
    from tests.chaos import report, starts

    work = (options.work or Path(tempfile.mkdtemp(prefix="chaos-"))).resolve()
    print(f"in {work}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores the first for what it starts in the background
        signal.signal(number, signal.default_int_handler)
    before = len(report.read(work / "results.jsonl"))
    try:
        run_trials(options, work)
    except KeyboardInterrupt:
        print("interrupted: the same command again goes on", flush=True)
    finally:
        for start in list(starts.LIVE):
            start.end()
    trials = report.read(work / "results.jsonl")
    print("\n" + report.text(trials), flush=True)
    return int(any(not trial["ok"] for trial in trials[before:]) or len(trials) == 0)


def run_trials(options: Namespace, work: Path) -> None:
    from tests.chaos import injected, report, trials
    from tests.chaos.materials import all_cells

    results = work / "results.jsonl"
    arena = trials.Arena(work, ("hand",) if options.short else LAUNCHERS, options.elastic)
    if options.short:
        arena.steps = 20
    arena.materials.make()

    def note(trial: trials.Trial) -> None:
        line = {"number": len(report.read(results)), **trial.as_dict()}
        report.append(results, line)
        print(f"{trial.what} {trial.name}: {'ok' if line['ok'] else 'FAILED: ' + '; '.join(line['wrong'])}", flush=True)

    if options.short:
        for trial in injected.short(arena, options.seed):
            note(trial)
        return
    for part in options.only:
        done = {(t["what"], t["name"]) for t in report.read(results)}
        for what, name, make in injected.PARTS.get(part, ()):
            if (what, name) not in done:
                note(make(arena))
        while part == "kills" and len(report.kills_of(report.read(results))) < options.kills:
            number = sum(t["what"] == "kills" for t in report.read(results))
            note(trials.kills(arena, number, options.seed, all_cells(options.elastic), MOST_KILLS))


if __name__ == "__main__":
    sys.exit(main())
