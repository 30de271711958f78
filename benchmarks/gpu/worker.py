"""A process of checks, one after another: worker.py KIT FOLDER [--quick] CHECK ..."""

import importlib
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path

from .__main__ import ALL, append_line


def main(kit: str, results: str, *names: str) -> None:
    """Appends each row to the results as it comes, and how the check ended."""
    from pretrain.engine.deepspeed_compat import silence_start

    silence_start()
    from .bench import Bench

    for check in (name for name in names if name != "--quick"):
        print(f"----- {check}", flush=True)
        module, name, *arguments = ALL[check].split(":")
        outcome = "passed"
        with tempfile.TemporaryDirectory(prefix="kinspan-gpu-") as scratch:
            try:
                run = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)
                for row in run(Bench(Path(kit), Path(scratch), "--quick" in names), *arguments):
                    append_line(Path(results), {"check": check, **asdict(row)})
                    outcome = f"failed: {row.what}" if row.holds is False else outcome
            except Exception as error:
                traceback.print_exc()
                outcome = f"failed: {error}"
        append_line(Path(results), {"check": check, "outcome": outcome})


if __name__ == "__main__":
    main(*sys.argv[1:])
