"""The process of one check: it imports ahead, waits to be told the check, and writes each row of results at once."""

import gc
import importlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .runner import append_line


def main(results: Path) -> None:
    """Runs the check that the standard input names. Raises AssertionError where a row says that it did not hold."""
    from pretrain.engine.deepspeed_compat import silence_start

    silence_start()
    import deepspeed  # noqa: F401
    import torch.distributed as dist

    import pretrain.run  # noqa: F401

    from .bench import Bench

    gc.freeze()  # DeepSpeed collects garbage at every start, and need not look through all that was imported
    line = sys.stdin.readline()
    if not line:  # nobody needs this process any more
        return
    told = json.loads(line)
    module, function, *arguments = told["function"].split(":")
    check = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    failed = []
    with tempfile.TemporaryDirectory(prefix="kinspan-gpu-") as scratch:
        for row in check(Bench(Path(told["kit"]), Path(scratch), results.parent, told["quick"]), *arguments):
            append_line(results, {"type": "row", "check": told["check"], **asdict(row)})
            if row.holds is False:
                failed.append(row.what)
    if dist.is_initialized():
        dist.destroy_process_group()
    if failed:
        raise AssertionError(f"did not hold: {'; '.join(failed)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
