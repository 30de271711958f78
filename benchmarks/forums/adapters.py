"""Measures whether training a hundred adapters in one process takes more memory than training one.

The loop of launch/train_adapters.py trains and releases one adapter after another beside a base of fresh weights, each
in a run of its own with a few updates, all on the same corpus under other names: what a run keeps is what is sought,
and not what it learns. Before each, the system is told to forget the most memory that the process has held (Linux
alone does that); after it, that peak is read.

Bar: the last one peaks at most 5% above the first."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import _common
from benchmarks.adapters import write_base
from data_pipeline.errors import KinspanError

BAR = 1.05
SHOWN = 8  # adapters in the table, evenly among all

EPILOG = """example:
  python -m benchmarks.forums.adapters --corpus corpora/aa
  python -m benchmarks.forums.adapters --corpus corpora/aa --model small-bert --adapters 10"""


def forget_peak() -> None:
    """Has the system count this process's peak of resident memory from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def read_peak() -> float:
    """The most resident memory since then, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def train_in_turn(corpora: list[str], base: str, output: str, method: str, pairs: int, steps: int) -> list[float]:
    """The peak of each adapter's training, in MB, in the order of the corpora."""
    import torch

    from launch._adapters import plan_runs, train_all
    from launch.train_adapters import TrainAdaptersConfig

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    settings = {"max_steps": steps, "eval_pairs": 0, "precision": "fp32", "peak_tflops": 1.0}
    settings |= {"global_batch_size": pairs, "micro_batch_size": pairs, "max_length": _common.MAX_LENGTH}
    config = TrainAdaptersConfig(corpus=corpora, model=base, output_dir=output, adapter=method, **settings)  # type: ignore[arg-type]
    peaks = []
    for name, run in plan_runs(config, None).items():
        forget_peak()
        began = time.perf_counter()
        train_all({name: run}, lambda line: None)
        peaks.append(read_peak())
        print(f"adapter {len(peaks)}: {peaks[-1]:,.0f} MB, {time.perf_counter() - began:.1f} s", flush=True)
    return peaks


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--model", default="bert-base", choices=("bert-base", "small-bert"), help="Its size.")
    parser.add_argument("--method", default="pfeiffer", choices=("pfeiffer", "lora"), help="What is trained.")
    parser.add_argument("--adapters", type=int, default=100, help="How many, one after another.")
    parser.add_argument("--steps", type=int, default=2, help="Updates of each.")
    parser.add_argument("--pairs", type=int, default=8, help="Pairs of an update.")
    parser.add_argument("--threads", type=int, default=2, help="Of the process.")
    args = parser.parse_args()
    if min(args.adapters, args.steps, args.pairs, args.threads) < 1:
        raise KinspanError("--adapters, --steps, --pairs and --threads must be above 0")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    with TemporaryDirectory() as folder:
        base, forums = Path(folder) / "base", Path(folder) / "forums"
        write_base(args.model, args.corpus, base)
        forums.mkdir()
        for number in range(args.adapters):
            (forums / f"forum-{number:03}").symlink_to(Path(args.corpus).resolve())
        names = sorted(map(str, forums.iterdir()))
        given = str(base), f"{folder}/runs", args.method, args.pairs, args.steps
        peaks: list[float] = _common.in_fresh_process(train_in_turn, names, *given)
    shown = sorted({round(k * (len(peaks) - 1) / (SHOWN - 1)) for k in range(SHOWN)})
    rows = [(f"{k + 1}", f"{peaks[k]:,.0f}", f"{peaks[k] / peaks[0]:.3f}") for k in shown]
    print()
    _common.print_table((f"{args.model}, adapter", "peak, MB", "x the first"), rows)
    print(f"bar: the last at most {BAR} times the first")
    figures: dict[str, Any] = {f"peak_{k + 1}": peaks[k] for k in shown}
    facts = {"ratio": peaks[-1] / peaks[0], "most": max(peaks) / peaks[0], "bar": BAR}
    _common.report("many_adapters", figures | facts | {"steps": args.steps, "pairs": args.pairs})


if __name__ == "__main__":
    _common.run(main)
