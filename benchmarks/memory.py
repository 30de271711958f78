"""Measures how the memory of a training run on a CPU grows: RssAnon of one process, read at steps of its log.

The run is launch/pretrain.py with its defaults (all-MiniLM-L6-v2, SSP), but for a small batch, without validation or
checkpoints between. Every batch has other shapes, as in any run.

Bar: at the last step at most 20% more than at step 100."""

import json
import subprocess
import sys
import time
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
  python benchmarks/memory.py --corpus corpora/aa"""


def measure_run(flags: list[str], folder: Path) -> dict[int, int]:
    """RssAnon in bytes of a run with these flags, by the step of the log's line after which it was read."""
    command = [sys.executable, str(_HERE.parent / "launch/pretrain.py"), *flags, "--output_dir", str(folder)]
    metrics = folder / "metrics.jsonl"
    readings: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            step = _read_last_step(metrics)
            if step and step % EVERY == 0 and step not in readings and (held := _read_anonymous_bytes(process.pid)):
                readings[step] = held
                print(f"step {step}: RssAnon {held / 1e9:.2f} GB", flush=True)
            time.sleep(0.2)
        error = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise KinspanError(f"the run ended with status {process.returncode}: {error.strip()[-300:]}")
    return readings


def _read_last_step(metrics: Path) -> int:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return max((line["step"] for line in lines if line["split"] == "train"), default=0)


def _read_anonymous_bytes(process: int) -> int:
    """Memory of the process that no file backs; 0 where it has just ended."""
    try:
        status = Path(f"/proc/{psutil.Process(process).pid}/status").read_text()
    except (OSError, psutil.Error):
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0)


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
    growth = readings[last] / readings[FIRST] - 1
    print(f"\nfrom step {FIRST} to step {last}: {100 * growth:+.0f}%")
    _common.report("memory", {f"rss_anon_{s}": held for s, held in readings.items()} | {"growth": growth})


if __name__ == "__main__":
    _common.run(main)
