"""``make gpu``: everything that can only be seen on a GPU, in one unattended command of less than nine minutes.

Unpacks what ``make gpu-kit`` has packed, and runs the checks: first, all at once, whether the product computes what it
should (losses against the CPU's, packed rows against padded ones, the same bits twice, after a kill too, every stage of
ZeRO, compiled against eager); then one by one how fast it is, beside the Trainer of transformers, and where the host
waits. The plan is printed first. Results are written as they come; a check for which too little time is left is not
begun, and listed.

With --quick everything is done with small models in a few steps, also where there is no GPU: it shows that the
command works, and its figures mean nothing."""

import argparse
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from .kit import MISSING, WHEELS, install_wheels
from .plan import BUDGET, NAMES, STAGES, sum_seconds
from .report import write_report
from .runner import NO_TIME, PASSED, run_checks

ROOT = Path(__file__).resolve().parents[2]
STRETCH = 10  # of estimates and budget with --quick, which runs one by one, for a busy machine of few cores
RESULTS = ("results.jsonl", "log.txt", "summary.json", "table.txt")


def parse_flags() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__, formatter_class=formatter)
    parser.add_argument("--kit", type=Path, default=ROOT / "gpu-kit", help="The folder that make gpu-kit has written.")
    parser.add_argument("--output_dir", type=Path, help="For results; without it $OUT, or else gpu-results.")
    parser.add_argument("--quick", action="store_true", help="Small models, a few steps.")
    parser.add_argument("--only", nargs="*", metavar="CHECK", default=NAMES, help="Some checks alone, by their names.")
    parser.add_argument("--minutes", type=float, help=f"When to end, without it {BUDGET / 60}; what is left is listed.")
    args = parser.parse_args()
    if not (args.kit / "models").is_dir():
        parser.error(MISSING.format(folder=args.kit))
    if unknown := set(args.only) - set(NAMES):
        parser.error(f"--only {unknown.pop()!r} is none of: {', '.join(NAMES)}")
    args.minutes = args.minutes or BUDGET / 60 * (STRETCH if args.quick else 1)
    args.output_dir = args.output_dir or Path(os.environ.get("OUT") or "gpu-results")
    return args


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that no worker is left behind
    args = parse_flags()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (args.output_dir / name).unlink(missing_ok=True)
    kit = args.kit.resolve()
    site = kit / f"site-{sys.version_info.major}.{sys.version_info.minor}"
    added = install_wheels(kit, site) if (kit / WHEELS).is_dir() else []
    print(f"from the kit: {', '.join(added) or 'nothing, all is there'}", flush=True)
    paths = [str(ROOT), *([str(site)] if site.is_dir() else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONUNBUFFERED": "1"}
    os.environ.setdefault("OMP_NUM_THREADS", "2")  # several checks share the processor, and count on the GPU
    stages = [[check for check in stage if check.name in args.only] for stage in STAGES]
    if args.quick:
        stages = [[replace(check, seconds=check.seconds * STRETCH)] for stage in stages for check in stage]
    for stage in filter(None, stages):
        print("planned:", "; ".join(f"{check.name} {check.seconds:.0f} s" for check in stage))
    print(f"planned in all: {sum_seconds(stages):.0f} of {60 * args.minutes:.0f} s", flush=True)
    outcomes = run_checks(
        stages,
        [sys.executable, "-m", "benchmarks.gpu.worker", str((args.output_dir / "results.jsonl").resolve())],
        {"kit": str(kit), "quick": args.quick},
        args.output_dir,
        deadline=began + 60 * args.minutes,
        tell=lambda line: print(f"{time.monotonic() - began:4.0f} s  {line}", flush=True),
    )
    seconds = time.monotonic() - began
    print(f"\n{write_report(args.output_dir, outcomes, seconds)}\n")
    left_out = ", ".join(outcome.check for outcome in outcomes if outcome.outcome == NO_TIME)
    print(f"{seconds:.0f} s; did not fit: {left_out or 'nothing'}; all of it: {args.output_dir}/summary.json")
    return int(any(outcome.outcome != PASSED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
