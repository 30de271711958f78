"""Measures what a checkpoint costs, written before training goes on (sync) or while it does (async), and a resume.

Ranks of DeepSpeed's launcher train all-MiniLM-L6-v2 as launch/pretrain.py does. Blocks of --save_steps steps take
turns: with no checkpoint, with one at the start of the block written sync, and with one written async; a block ends
when its last step is done and its checkpoint is on the disk. Medians count; a checkpoint costs what its block takes
longer than the one without.
Then a run is stopped and started again, and timed from the command to its first step."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.core.errors import KinspanError
from pretrain.batches import make_micro_batches
from pretrain.checkpoints.writer import Writer

KINDS = ("none", "sync", "async")
EPILOG = """example:
  python benchmarks/checkpoint.py --corpus corpora/aa --save_steps 20"""


def flags() -> Namespace:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    parser.add_argument("--ranks", type=int, default=2, help="Processes.")
    parser.add_argument("--stage", type=int, default=2, help="Of ZeRO.")
    parser.add_argument("--pairs", type=int, default=16, help="In a step, over all ranks.")
    parser.add_argument("--save_steps", type=int, default=10, help="Steps of a block, which has one writer.")
    parser.add_argument("--rounds", type=int, default=3, help="Blocks of each kind that count.")
    parser.add_argument("--local_rank", type=int, default=-1, help="Set by the launcher.")
    parser.add_argument("--folder", help="Set by the benchmark itself: where the ranks write.")
    return parser.parse_args()


def worker(options: Namespace) -> None:
    """Run by each rank: times the blocks; rank 0 leaves them as JSON."""
    from pretrain.config import PretrainConfig
    from pretrain.engine import ranks
    from pretrain.engine.layout import Layout
    from pretrain.engine.world import read_launcher_variables
    from pretrain.setup import begin, set_up
    from pretrain.step import start_count_reduction, train_step

    rank, _, size = read_launcher_variables()
    folder = Path(options.folder)
    config = PretrainConfig(
        corpus=options.corpus,
        output_dir=str(folder / "run"),
        deepspeed_config=f"ds_configs/zero{options.stage}.json",
        global_batch_size=options.pairs,
        micro_batch_size=options.pairs,
        max_length=_common.MAX_LENGTH,
        precision="fp32",
        max_steps=10**6,
        eval_pairs=0,
    )
    begin(config)
    setup = set_up(config)
    from pretrain.engine.engine import build_engine

    engine = build_engine(setup.model, config, setup.deepspeed_settings)
    engine.train()
    layout, filler, step = Layout(options.pairs, options.pairs, size), setup.train_stream.batch(0, 1), 0
    writers = {kind: Writer(folder / kind, rank, background=kind == "async") for kind in KINDS[1:]}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    stood: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds + 1):
        for kind in KINDS:
            ranks.barrier()
            began = time.perf_counter()
            if kind in writers:
                writers[kind].save(engine, {"step": step, "world_size": size})
            waited = time.perf_counter() - began
            for _ in range(options.save_steps):
                batches = make_micro_batches(setup.train_stream, layout, rank, step)
                train_step(
                    engine,
                    global_batch=start_count_reduction(batches, engine.module.losses)(),
                    filler=filler,
                    layout=layout,
                    rank=rank,
                    seed=config.seed,
                    step=step,
                )
                step += 1
            if kind in writers and (failure := writers[kind].finish()):
                raise KinspanError(failure)
            ranks.barrier()
            if number:  # the first round warms up
                seconds[kind].append(time.perf_counter() - began)
                stood[kind].append(waited)
    if rank == 0:
        size_mb = sum(p.stat().st_size for p in (folder / "sync").rglob("*") if p.is_file()) / 1e6
        (folder / "blocks.json").write_text(json.dumps({"seconds": seconds, "stood": stood, "mb": size_mb}))
    ranks.barrier()


def launch(ranks: int, *program: str) -> subprocess.Popen:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    command = ["deepspeed", "--num_accelerators", str(ranks), "--master_port", str(port), *program]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen, status: int) -> None:
    _, said = process.communicate()
    if process.returncode != status:
        raise KinspanError(f"the ranks ended with status {process.returncode}: {said[-2000:]}")


def blocks(options: Namespace, folder: Path) -> dict[str, Any]:
    given = [f"--{name}={getattr(options, name)}" for name in ("corpus", "stage", "pairs", "save_steps", "rounds")]
    ended(launch(options.ranks, str(Path(__file__).resolve()), *given, f"--folder={folder}"), 0)
    return json.loads((folder / "blocks.json").read_text())


def resume(options: Namespace, folder: Path) -> tuple[float, float]:
    """Seconds from the command to the first step of a fresh run, and of one that resumes."""
    settings = {
        "corpus": options.corpus,
        "output_dir": folder / "resumed",
        "deepspeed_config": f"ds_configs/zero{options.stage}.json",
        "global_batch_size": options.pairs,
        "micro_batch_size": options.pairs,
        "precision": "fp32",
        "eval_pairs": 0,
        "log_steps": 1,
        "max_steps": 10**6,
    }
    took, metrics = [], folder / "resumed" / "metrics.jsonl"
    for _ in range(2):
        before, began = _steps(metrics), time.perf_counter()
        process = launch(
            options.ranks, str(_common.ROOT / "launch/pretrain.py"), *(f"--{k}={v}" for k, v in settings.items())
        )
        while _steps(metrics) <= before:
            if process.poll() is not None:
                ended(process, 0)
                raise KinspanError("the run ended before its first step")
            time.sleep(0.02)
        took.append(time.perf_counter() - began)
        rank = _a_rank_of(process.pid)
        os.kill(rank, signal.SIGTERM)
        ended(process, 75)
    return took[0], took[1]


def _steps(metrics: Path) -> int:
    return metrics.read_text().count('"split": "train"') if metrics.exists() else 0


def _a_rank_of(launcher: int) -> int:
    import psutil

    return next(p.pid for p in psutil.Process(launcher).children(recursive=True) if "--local_rank=0" in p.cmdline())


def main() -> None:
    options = flags()
    if options.folder:
        return worker(options)
    with tempfile.TemporaryDirectory() as name:
        measured = blocks(options, Path(name))
        fresh, resumed = resume(options, Path(name))
    median = {kind: statistics.median(values) for kind, values in measured["seconds"].items()}
    stood = {kind: statistics.median(values) for kind, values in measured["stood"].items()}
    step = median["none"] / options.save_steps
    rows = []
    for kind in KINDS[1:]:
        cost = median[kind] - median["none"]
        share = 100 * cost / median["none"]
        rows.append((kind, f"{stood[kind]:.2f} s", f"{cost:.2f} s", f"{cost / step:.2f}", f"{share:.1f} %"))
    header = ("checkpoint", "training stands", "costs", "in steps", f"of {options.save_steps} steps")
    print(f"\na step takes {step:.2f} s; a checkpoint has {measured['mb']:.0f} MB\n")
    _common.print_table(header, rows)
    print(f"\nfrom the command to the first step: {fresh:.1f} s fresh, {resumed:.1f} s resumed\n")
    figures = {f"{kind}_percent": 100 * (median[kind] / median["none"] - 1) for kind in KINDS[1:]}
    figures |= {f"{kind}_stands_seconds": stood[kind] for kind in KINDS[1:]}
    _common.report(
        "checkpoint",
        {**figures, "step_seconds": step, "fresh_seconds": fresh, "resume_seconds": resumed, "mb": measured["mb"]},
    )


if __name__ == "__main__":
    _common.run(main)
