"""Measures whether a training run on a CPU stays as it begins: its memory (RssAnon of one process) and its speed.

The run is launch/pretrain.py with its defaults (all-MiniLM-L6-v2, SSP), but for a small batch, without validation or
checkpoints between. Every batch has other shapes, as in any run. Both figures are read at steps of its log; the
speed is the median of the lines since the reading before.

Bars: at the last step at most 20% more memory than at step 100, and no slower but for noise."""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import psutil

from benchmarks import _common
from data_pipeline.errors import KinspanError

EVERY, FIRST = 50, 100  # steps between two readings; the step that later ones are compared with

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --output_dir corpora/aa
  python benchmarks/steady.py --corpus corpora/aa"""


@dataclass(frozen=True)
class Reading:
    """A run's process after a line of its log.

    memory: bytes that no file backs (RssAnon)
    speed:  tokens per second, the median of the lines since the reading before
    files:  open descriptors
    shards: mapped shards of corpora
    """

    memory: int
    speed: float
    files: int
    shards: int


def measure_run(flags: list[str], folder: Path, every: int = EVERY) -> dict[int, Reading]:
    """Readings of a run of launch/pretrain.py, by the step of the log's line after which they were taken.

    every: steps between two readings, a multiple of --log_steps
    """
    command = [sys.executable, str(_HERE.parent / "launch/pretrain.py"), *flags, "--output_dir", str(folder)]
    metrics = folder / "metrics.jsonl"
    readings: dict[int, Reading] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            speeds = _read_speeds(metrics)
            step = max(speeds, default=0)
            if step and step % every == 0 and step not in readings:
                speed = statistics.median(value for number, value in speeds.items() if number > step - every)
                if found := read_process(process.pid, speed):
                    readings[step] = found
                    print(f"step {step}: RssAnon {found.memory / 1e9:.3f} GB, {speed:,.0f} tokens/s", flush=True)
            time.sleep(0.2)
        error = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise KinspanError(f"the run ended with status {process.returncode}: {error.strip()[-300:]}")
    return readings


def _read_speeds(metrics: Path) -> dict[int, float]:
    """Tokens per second of the log's training lines, by step."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return {line["step"]: line["tokens_per_second"] for line in lines if line["split"] == "train"}


def read_process(process: int, speed: float) -> Reading | None:
    """What the system says of the process; None where it has just ended."""
    try:
        place = Path(f"/proc/{psutil.Process(process).pid}")
        status = (place / "status").read_text()
        files = len(os.listdir(place / "fd"))
        mapped = {line.split()[-1] for line in (place / "maps").read_text().splitlines() if line.endswith(".arrow")}
    except (OSError, psutil.Error):
        return None
    held = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0)
    return Reading(held, speed, files, len(mapped)) if held else None


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--model", help="A model in place of the default one.")
    parser.add_argument("--pairs", type=int, default=8, help="Pairs of an update, in one micro-batch.")
    parser.add_argument("--steps", type=int, default=600, help="Updates.")
    parser.add_argument("--precision", default="auto", help="As of launch/pretrain.py.")
    args = parser.parse_args()
    if args.steps <= FIRST:
        raise KinspanError(f"--steps {args.steps}: more than {FIRST} are needed to compare")
    flags = ["--corpus", args.corpus, "--precision", args.precision, "--max_steps", str(args.steps)]
    flags += ["--global_batch_size", str(args.pairs), "--micro_batch_size", str(args.pairs), "--eval_pairs", "0"]
    flags += ["--save_steps", str(args.steps)]
    flags += ["--model", args.model] if args.model else []
    with TemporaryDirectory() as folder:
        readings = measure_run(flags, Path(folder) / "run")
    last = max(step for step in readings if step < args.steps)  # at the very last one the checkpoint is written
    growth = readings[last].memory / readings[FIRST].memory - 1
    faster = readings[last].speed / readings[FIRST].speed - 1
    print(f"\nfrom step {FIRST} to step {last}: memory {100 * growth:+.0f}%, speed {100 * faster:+.0f}%")
    figures: dict[str, float] = {f"rss_anon_{step}": found.memory for step, found in readings.items()}
    figures |= {f"tokens_per_second_{step}": found.speed for step, found in readings.items()}
    _common.report("steady", figures | {"growth": growth, "faster": faster})


if __name__ == "__main__":
    _common.run(main)
