"""Checks all hosts before a long run: started like launch/pretrain.py, with the same launcher and the same flags."""

import sys
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).resolve().parent  # kept off the path, where launch/pretrain.py would hide pretrain/
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.command_line import parse
from launch.kinspan import run
from pretrain.config import PretrainConfig

DESCRIPTION = """Finds in a minute what would waste the first night of a long run: versions, settings, corpora or
devices that differ between hosts, GPUs in use, full disks, a slow network, a batch that does not fit. It takes the
flags of launch/pretrain.py, and the same launcher starts it on all hosts. Exit status 0: the run may start; 2: it may
not, and each line names a problem and its host. It writes nothing to the output folder."""

EPILOG = """examples:
  kinspan preflight --corpus corpora/docs --output_dir runs/docs
  kinspan preflight --config my_run.yaml && kinspan pretrain --config my_run.yaml
  deepspeed --hostfile hostfile launch/preflight.py --config my_run.yaml"""


def main() -> Iterator[str]:
    config = parse(PretrainConfig, DESCRIPTION, EPILOG)
    import torch.distributed as dist  # after the flags: torch takes seconds to import

    from pretrain.preflight import preflight

    problems = preflight(config)
    yield "\n".join([*problems, "NOT READY" if problems else "READY"])
    dist.destroy_process_group()
    if problems:
        raise SystemExit(2)  # the status of all errors that the user can fix


if __name__ == "__main__":
    run(main)
