"""Checks all hosts before a long run: put before launch/pretrain.py, with the same launcher and the same flags."""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what fails is said here, with less noise

from launch._cli import parse, run
from pretrain.config import PretrainConfig

NOT_READY = 2  # as for whatever else the user can mend

DESCRIPTION = """Finds in a minute what would waste the first night of a long run: versions that differ between hosts,
devices in use, full disks, clocks that disagree, a low limit of open files, a corpus that is missing or damaged on one
host, hosts that do not reach one another, slow links; it trains for a few steps and says how fast. It takes the flags
of launch/pretrain.py, and the same launcher starts it on all hosts. Exit status 0: the run may start; 2: it may not,
and the lines say which host is in the way and what to do. It leaves nothing in the output folder."""

EPILOG = """examples:
  kinspan preflight --config my_run.yaml && kinspan pretrain --config my_run.yaml
  deepspeed --hostfile hostfile launch/preflight.py --config my_run.yaml
  torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint node0:29500 -m launch.preflight \\
      --config my_run.yaml"""


def main() -> None:
    config = parse(PretrainConfig, DESCRIPTION, EPILOG)
    from pretrain.preflight.preflight import leave_group, preflight

    ready = preflight(config)
    leave_group()
    if not ready:
        raise SystemExit(NOT_READY)


if __name__ == "__main__":
    run(main)
