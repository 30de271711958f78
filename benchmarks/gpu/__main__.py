"""``make gpu``: everything that can only be seen on a GPU, in one unattended command.

Unpacks what ``make gpu-kit`` has packed, and runs the checks: first, all at once, whether the product computes what it
should; then one by one how fast it is. What runs at the end of its minutes is ended; the results of the others stand.

With --quick all is done with small models in a few steps, one by one, also where there is no GPU: it shows that the
command works, and its figures mean nothing."""

# Standard library only: this process must not use what it unpacks for the others.
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import wrap
from typing import Any

from . import MODELS, WHEELS

ROOT = Path(__file__).resolve().parents[2]
# Functions of benchmarks.gpu, with arguments after more colons. A check is a process of its own, speeds share one.
CHECKS = {
    "packed against padded": "checks:compare_families",
    "losses on GPU and CPU": "checks:compare_losses",
    "the same run twice": "checks:repeat",
    "kill -9 and resume": "checks:kill_and_resume",
    "two ranks on one GPU": "checks:compare_ranks",  # before a check that trains in this process, and sets its ranks
    "updates": "checks:compare_updates",
    "compiled against eager": "checks:compare_compiled",
}
SPEEDS = {  # the last may not end
    "machine": "speed:measure_machine",
    "the Trainer, RoBERTa-base": "speed:measure_trainer",  # before ours, whose process group would wrap it in DDP
    "RoBERTa-base": "speed:measure:roberta-base:eager:1024:256:16",
    "where the host waits": "speed:count_waits",
    "MiniLM-L6": "speed:measure:minilm-l6:eager:2048:512:16",
    "ELECTRA-base": "speed:measure:electra-base:eager:1024",
    "ModernBERT-base": "speed:measure:modernbert-base:eager:1024",
    "RoBERTa-base, compiled": "speed:measure:roberta-base:compile:2048:1024",  # last: its losses stay compiled
    "ModernBERT-base, compiled": "speed:measure:modernbert-base:compile:1024",
}
ALL = CHECKS | SPEEDS
MINUTES, CHECK_MINUTES = 9.0, 3.5  # of all, and of the checks among them; on an H200 these take 1.7
STRETCH = 10  # of the minutes with --quick, for a busy machine of few cores


def install_wheels(kit: Path, target: Path) -> list[str]:
    """Installs into ``target`` those wheels that this machine lacks or has in an older version; returns their names."""
    wheels = [wheel for wheel in sorted((kit / WHEELS).glob("*.whl")) if not _is_there(wheel)]
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--upgrade", "--target", str(target)]
        subprocess.run([*command, *map(str, wheels)], check=True)
    return [wheel.name.split("-")[0] for wheel in wheels]


def _is_there(wheel: Path) -> bool:
    name, needed = wheel.name.split("-")[:2]
    with suppress(PackageNotFoundError):
        there, wanted = ([int(n) for n in re.findall(r"\d+", text)[:3]] for text in (version(name), needed))
        return there >= wanted
    return False


def run_at_once(groups: list[list[str]], command: list[str], folder: Path, deadline: float) -> None:
    """Runs each group of checks in a process, all at once; at the deadline ends them, with what they started.

    command: of a worker, which gets the names of its checks, and appends their rows and outcomes to results.jsonl
    folder:  of results.jsonl, and of log.txt, what all workers say
    """
    running, groups = [], [names for names in groups if names]
    for names in groups:
        with (folder / "log.txt").open("ab") as log:
            running.append(subprocess.Popen([*command, *names], stdout=log, stderr=log, process_group=0))
    try:
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for names, process in zip(groups, running, strict=True):
            status = process.poll()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done = {line["check"] for line in read_results(folder) if "outcome" in line}
            for name in [name for name in names if name not in done][:1]:
                outcome = "ended at its limit" if status is None else f"failed: status {status}"
                append_line(folder, {"check": name, "outcome": outcome})


def append_line(folder: Path, values: dict[str, Any]) -> None:
    """Adds one line of JSON to results.jsonl, in one write."""
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def read_results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def format_table(names: Iterable[str], results: list[dict[str, Any]]) -> Iterable[str]:
    """Yields a line for each check and row."""
    for name in names:
        lines = [line for line in results if line["check"] == name]
        yield f"{name}: {next((line['outcome'] for line in lines if 'outcome' in line), 'not begun')}"
        for row in (line for line in lines if "figures" in line):
            holds = {None: "", True: " [holds]", False: " [DOES NOT HOLD]"}[row["holds"]]
            rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row["figures"].items()}
            figures = ", ".join(f"{key} {value}" for key, value in rounded.items())
            yield from wrap(f"{row['what']}{holds}: {figures}", 150, initial_indent="  ", subsequent_indent="      ")


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that no worker is left behind
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__, formatter_class=formatter)
    parser.add_argument("--kit", type=Path, default=ROOT / "gpu-kit", help="The folder that make gpu-kit has written.")
    parser.add_argument("--output_dir", type=Path, default=os.environ.get("OUT") or "gpu-results", help="For results.")
    parser.add_argument("--quick", action="store_true", help="Small models, a few steps.")
    parser.add_argument("--only", nargs="*", metavar="CHECK", choices=ALL, default=[*ALL], help="Some checks alone.")
    args = parser.parse_args()
    kit, folder = args.kit.resolve(), args.output_dir.resolve()
    if not (kit / MODELS).is_dir():
        parser.error(f"--kit {args.kit} is no kit: pack one on a machine with a package index by `make gpu-kit`")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("results.jsonl", "log.txt"):
        (folder / name).unlink(missing_ok=True)
    site = kit / f"site-{sys.version_info.major}.{sys.version_info.minor}"
    print(f"from the kit: {', '.join(install_wheels(kit, site)) or 'nothing, all is there'}", flush=True)
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # as the product sets it, and for all workers
    os.environ.setdefault("OMP_NUM_THREADS", "2")  # several checks share the processor, and count on the GPU
    worker = [sys.executable, "-m", "benchmarks.gpu.worker", str(kit), str(folder), *["--quick"] * args.quick]
    checks, speeds = ([name for name in of if name in args.only] for of in (CHECKS, SPEEDS))
    minute = 60 * (STRETCH if args.quick else 1)
    plan = f"{CHECK_MINUTES * minute:.0f} s for {', '.join(checks)}; speeds until {MINUTES * minute:.0f} s"
    print(plan, flush=True)
    run_at_once([checks] if args.quick else [[name] for name in checks], worker, folder, began + CHECK_MINUTES * minute)
    run_at_once([speeds], worker, folder, began + MINUTES * minute)
    results = read_results(folder)
    print("\n".join(format_table(args.only, results)))
    print(f"{time.monotonic() - began:.0f} s; all of it: {folder}")
    return int(any(line.get("outcome", "passed") != "passed" for line in results))


if __name__ == "__main__":
    sys.exit(main())
