"""Two ranks that share one GPU, over gloo, against one rank."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks._common import ROOT

from .bench import Bench, Row, finish, read_lines
from .updates import NO_DROPOUT

CLOSE = 1e-5  # of losses, relative
PAIRS, STEPS, STAGES = 32, 6, (1, 2)


def compare_ranks(bench: Bench) -> Iterator[Row]:
    """MiniLM-L6 in fp32 under ZeRO 1 and 2, without TF32 and dropout: all runs at once."""
    model = bench.model("minilm-l6", **NO_DROPOUT)
    shape = {"global_batch_size": PAIRS, "micro_batch_size": PAIRS // 4, "max_steps": STEPS, "save_steps": STEPS}
    runs = {
        (stage, ranks): bench.settings(
            "minilm-l6",
            **{**shape, "model": model, "precision": "fp32", "tf32": False, "log_steps": 1, "num_workers": 1},
            deepspeed_config=f"ds_configs/zero{stage}.json",
        )
        for stage in STAGES
        for ranks in (1, 2)
    }
    started = []
    for number, ((_, ranks), settings) in enumerate(runs.items()):
        started += [start_rank(settings, rank, ranks, 29610 + number) for rank in range(ranks)]
    for process in started:
        finish(process)
    for stage in STAGES:
        lone, pair = (read_lines(runs[stage, ranks]) for ranks in (1, 2))
        gap = max(abs(a["loss"] - b["loss"]) / a["loss"] for a, b in zip(lone, pair, strict=True))
        figures = {"losses apart, relative": gap, "steps": len(pair), "last loss": pair[-1]["loss"]}
        yield Row(f"ZeRO {stage}, two ranks against one", figures, gap <= CLOSE and len(pair) == STEPS)


def start_rank(settings: dict[str, Any], rank: int, ranks: int, port: int) -> subprocess.Popen:
    """Starts a rank as the only one of its machine, so that it takes the first GPU."""
    variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}, "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "benchmarks.gpu.ranks", json.dumps(settings)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, env=env)


def main() -> None:
    """Trains as one rank. NCCL refuses two ranks of one GPU, so that gloo takes its place."""
    from pretrain.engine.deepspeed_compat import silence_start

    silence_start()
    from deepspeed.accelerator import get_accelerator

    from pretrain.config import PretrainConfig
    from pretrain.run import pretrain

    get_accelerator()._communication_backend_name = "gloo"
    pretrain(PretrainConfig(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
