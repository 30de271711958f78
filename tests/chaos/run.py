"""Kills, damages and starves runs, starts them again, and compares how they end with runs that nothing happened to."""

import os
import signal
import sys
import tempfile
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE.parents[1]
sys.path[:] = [str(ROOT)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

DESCRIPTION = """Proves one promise: whatever happens, the same command again continues from the last complete
checkpoint, and the run ends exactly as if nothing had happened, or it refuses in one line that names the reason.

kills:     a random signal (kill -9, TERM, INT, USR1, or two of them) at a random moment, often inside checkpointing, to
           a rank, to DeepSpeed's launchers or to all; again and again, until the run ends. Its weights, log and state
           must be, bit for bit, those of a run that nothing happened to.
damage:    each file of a checkpoint truncated, emptied, bit-flipped or removed: the older checkpoint is resumed from.
injected:  NaN, a rank that stalls or is stopped, a full disk, a damaged corpus, a clock that leaps, two runs at once.

Each trial is appended to the results as a line of JSON; the same command again goes on after the last one. The table of
all of them is printed at the end, and on Ctrl-C. Status 1: a trial failed; its runs and logs stay in --work."""

EPILOG = """examples:
  python tests/chaos/run.py --short
  python tests/chaos/run.py --minutes 60 --work chaos
  python tests/chaos/run.py --kills 200 --only kills --seed 2
  python tests/chaos/run.py --only damage injected
  python tests/chaos/run.py --table chaos/results.jsonl"""

PARTS = ("kills", "damage", "injected")


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    pass


def flags(argv: list[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=DESCRIPTION, epilog=EPILOG, formatter_class=_Formatter, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="One of most things, in a minute: what `make test` runs.")
    parser.add_argument("--minutes", type=float, help="Begin no trial after so many minutes.")
    parser.add_argument("--kills", type=int, default=200, help="Kills in all, those in the results counted.")
    parser.add_argument("--kills_each", type=int, default=6, help="Most kills of one run, then it is left to end.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="Parts to run, in this order.")
    parser.add_argument("--seed", type=int, default=1, help="Of moments, signals and ranks.")
    parser.add_argument("--work", type=Path, help="Folder for everything. Default: one in the temporary folder.")
    parser.add_argument("--results", type=Path, help="File of JSON lines. Default: results.jsonl in --work.")
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=("deepspeed", "hand", "forked"),
        default=["deepspeed", "forked", "forked"],
        help="How runs start, drawn at random: DeepSpeed's launcher, ranks started one by one, or as forks of a "
        "process that has imported everything (fast). What is aimed at a launcher needs deepspeed.",
    )
    parser.add_argument("--elastic", action="store_true", help="Change the number of ranks at each start, too.")
    parser.add_argument(
        "--named", nargs="+", default=[], help="Only cells and trials with one of these in their names."
    )
    parser.add_argument("--table", type=Path, help="Print the table of these results, and stop.")
    return parser.parse_args(argv)


def main() -> int:
    options = flags()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.chdir(ROOT)
    from tests.chaos import report, starts

    if options.table:
        print(report.text(report.read(options.table)))
        return 0
    work = options.work or Path(tempfile.mkdtemp(prefix="chaos-"))
    results = options.results or work / "results.jsonl"
    print(f"in {work}, results in {results}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores the first for what it starts in the background
        signal.signal(number, signal.default_int_handler)
    before = len(report.read(results))
    try:
        go(options, work.resolve(), results)
    except KeyboardInterrupt:
        print("interrupted: the same command again goes on", flush=True)
    finally:
        for start in list(starts.LIVE):
            start.end()
    trials = report.read(results)
    print("\n" + report.text(trials), flush=True)
    return int(any(not trial["ok"] for trial in trials[before:]) or len(trials) == 0)


def go(options: Namespace, work: Path, results: Path) -> None:
    from tests.chaos import injected, report, trials
    from tests.chaos.materials import all_cells

    began = time.monotonic()
    launchers = ("forked",) if options.short else tuple(options.launchers)
    arena = trials.Arena(work, launchers, options.elastic)
    if options.short:
        arena.steps = 20
    arena.materials.make()

    def note(trial: trials.Trial) -> None:
        line = {"number": len(report.read(results)), **trial.as_dict()}
        report.append(results, line)
        said = "ok" if line["ok"] else "FAILED: " + "; ".join(line["wrong"])
        strikes = [f"{s['fault']['kind']}{' (inside)' if s['inside'] else ''}" for s in line["starts"] if s["struck"]]
        seconds = f"{time.monotonic() - began:.0f} s"
        print(f"[{seconds}] {trial.what} {trial.name}: {said}  {', '.join(strikes)}", flush=True)

    def late() -> bool:
        return options.minutes is not None and time.monotonic() - began > options.minutes * 60

    def named(name: str) -> bool:
        return not options.named or any(part in name for part in options.named)

    if options.short:
        for trial in injected.short(arena, options.seed):
            note(trial)
        return
    for part in options.only:
        done = {(t["what"], t["name"]) for t in report.read(results)}
        if part != "kills":
            for what, name, make in injected.PARTS[part]:
                if (what, name) not in done and named(name) and not late():
                    note(make(arena))
            continue
        cells = [cell for cell in all_cells(options.elastic) if named(str(cell))]
        while cells and len(report.kills_of(report.read(results))) < options.kills and not late():
            number = sum(t["what"] == "kills" for t in report.read(results))
            note(trials.kills(arena, number, options.seed, cells, options.kills_each))


if __name__ == "__main__":
    sys.exit(main())
