"""A process of checks, one after another: worker.py KIT FOLDER DEADLINE [--quick] CHECK ..."""

import importlib
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from .__main__ import ALL, STRETCH, append_line


def main(kit: str, results: str, deadline: str, *names: str) -> None:
    """Appends each row to the results as it comes, and how the check ended."""
    from pretrain.engine.deepspeed_compat import silence_start

    silence_start()
    from .bench import Bench

    quick, folder = "--quick" in names, Path(results)
    for check in (name for name in names if name != "--quick"):
        function, seconds = ALL[check]
        began = time.monotonic()
        if began + seconds * (STRETCH if quick else 1) > float(deadline):
            append_line(folder, {"check": check, "outcome": "skipped, for want of time"})
            continue
        print(f"----- {check}", flush=True)
        module, name, *arguments = function.split(":")
        outcome = "passed"
        with tempfile.TemporaryDirectory(prefix="kinspan-gpu-") as scratch:
            try:
                run = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)
                for row in run(Bench(Path(kit), Path(scratch), quick), *arguments):
                    append_line(folder, {"check": check, **asdict(row)})
                    outcome = f"failed: {row.what}" if row.holds is False else outcome
            except Exception as error:
                traceback.print_exc()
                outcome = f"failed: {error}"
        append_line(folder, {"check": check, "outcome": f"{outcome}, {time.monotonic() - began:.0f} s"})


if __name__ == "__main__":
    main(*sys.argv[1:])
