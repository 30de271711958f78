"""The study of benchmarks/dose at the dose of a GPU: two rates at once, then all fine-tunings at once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT

from .bench import Bench, Row

# The study's rate is for 32 pairs an update. The square-root rule gives four times that for 512.
RATES = {"gpu": None, "gpu-high": 1e-3}
SEEDS = (1, 2, 3)
SETS = ("selqa", "wikiqa", "trecqa")
QUICK = {"global_batch_size": 16, "micro_batch_size": 16, "num_workers": 1, "eval_pairs": 16}
LINES = {"train": 700, "dev": 400, "test": 40}  # of SelQA with --quick: 12 candidates a question
PIECE = 15 << 20  # bytes of a file of results


def measure_dose(bench: Bench) -> Iterator[Row]:
    """Pre-trains rampart on 3.3 million pairs and ranks SelQA, WikiQA and TREC-QA, without labels and with 50
    questions."""
    if not (bench.kit / "dose").is_dir():
        yield Row("", {"": "the kit was packed without --study"})
        return
    work, lines = bench.scratch / "dose", bench.scratch / "lines"
    work.mkdir()
    for made in (bench.kit / "dose").iterdir():
        if made.name != "sets" or not bench.quick:
            (work / made.name).symlink_to(made)
    for split, count in LINES.items() if bench.quick else ():
        lines_of = (bench.kit / f"dose/sets/selqa/{split}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (work / "sets/selqa").mkdir(parents=True, exist_ok=True)
        (work / f"sets/selqa/{split}.jsonl").write_text("".join(lines_of[:count]), encoding="utf-8")
    seen: dict[Path, int] = {}

    def start(arm: str, questions: int, name: str, seed: int) -> subprocess.Popen:
        row = f"rampart-{arm}-[0-9]*-{questions}-{name}"
        options = ["--work", work, "--lines", lines, "--only", row, "--seeds", seed, "--data", work, "--text", work]
        command = [sys.executable, "-m", "benchmarks.gpu.dose", str(int(bench.quick)), *map(str, options)]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def collect() -> Iterator[Row]:
        for path in sorted(lines.glob("*.jsonl")):
            written = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            for text in written[seen.get(path, 0) :]:
                with (bench.out / "dose.jsonl").open("a", encoding="utf-8") as file:
                    file.write(text)
                line = json.loads(text)
                figures = {name: line[name] for name in ("map", "auc", "tokens", "pretrain_seconds", "seconds")}
                yield Row(f"{line['row']}, seed {line['seed']}", figures | {"updates": line.get("updates", 0)})
            seen[path] = len(written)

    sets, seeds = (SETS[:1], SEEDS[:1]) if bench.quick else (SETS, SEEDS)
    # The first of an arm pre-trains; the others wait for it at a lock
    running = [start(arm, 0, name, 1) for name in sets for arm in RATES]
    running += [start(arm, 50, name, seed) for arm in RATES for seed in seeds for name in sets]
    kept = False
    while any(process.poll() is None for process in running):
        time.sleep(1)
        yield from collect()
        if not kept and (lines / "rampart-gpu-3299840-0-selqa.jsonl").exists():
            kept = True
            yield keep_weights(bench, work)
    yield from collect()
    missing = sum(process.returncode != 0 for process in running)
    yield Row("rows", {"missing": missing}, not missing)


def keep_weights(bench: Bench, work: Path) -> Row:
    """Copies the released weights of the study's rate into the results, in half precision and in pieces."""
    from safetensors.torch import load_file, save

    release = next(work.glob("pretrained/rampart-gpu-[0-9]*/release"))
    weights = load_file(release / "model.safetensors")
    whole = save({name: weight.half().contiguous() for name, weight in weights.items()})
    for number, start in enumerate(range(0, len(whole), PIECE)):
        (bench.out / f"rampart-gpu.{number}").write_bytes(whole[start : start + PIECE])
    return Row("weights", {"MB": len(whole) / 1e6})


def main() -> None:
    """Runs the study with the rows of a GPU alone; of --quick a few pairs and updates."""
    from benchmarks.dose import run

    quick = bool(int(sys.argv.pop(1)))
    pairs = 64 if quick else run.HUGE
    for arm, rate in RATES.items():
        run.ARMS[arm] = ({**run.GPU, **({"learning_rate": rate} if rate else {})}, {})
        if quick:
            run.ARMS[arm][0].update(
                {"global_batch_size": 16, "micro_batch_size": 16, "num_workers": 1, "eval_pairs": 16}
            )
    if quick:
        run.FINETUNE |= {"max_steps": 2, "eval_steps": 1}
    run.BLOCKS = [
        (len(SEEDS), [run.Row("rampart", arm, pairs, questions, name)])
        for arm in RATES
        for questions in (0, 50)
        for name in SETS
    ]
    pretrain = run.Study.pretrain
    run.Study.pretrain = lambda study, row, seed: pretrain(study, row, 1)  # one for all seeds of fine-tuning
    kinspan, paths = run.kinspan, os.environ.get("PYTHONPATH", "")  # with what the kit has installed

    def run_command(*given: Any) -> None:
        os.environ["PYTHONPATH"] = paths
        kinspan(*given)

    run.kinspan = run_command
    run.name_commit = lambda: os.environ.get("COMMIT", "")
    run.main()


if __name__ == "__main__":
    main()
