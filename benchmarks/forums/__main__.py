"""Measures whether many forums fit: preparing 140 of them, and training round robin over all, one step a forum.

The forums are made (dump.py) from the real dumps of --dumps, their sizes three orders of magnitude
apart, and are written in StackExchange's format, so that the reader of dumps reads them. One process prepares all, the
largest first. Then, on title and body with the sets `all` and `balanced`, and on duplicates, a process reads batches
for many rounds and does nothing else, and launch/pretrain.py trains a tiny model. Memory is RssAnon of the one process:
what no file backs. Readings count when each forum has had two batches; compared are the medians of the first third of
them and of the last. Speed is that of a tiny model on whatever machine this is, and no figure of merit.

Bar: at most 3% more memory at the end than at the beginning."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks.forums.dump import plan_forums, read_material, write_dump
from benchmarks.forums.measure import SEED, compare, count_forums, prepare_all, read_rounds, train, write_model
from data_pipeline.errors import KinspanError

BAR = 0.03
RUNS = {  # objective, --forums and --min_questions
    "title_body, all": ("title_body", "all", 0),
    "title_body, balanced": ("title_body", "balanced", 0),
    "duplicate, all": ("duplicate", "all", 100),
}

EPILOG = """example, with dumps/beer/Posts.xml and others:
  python -m benchmarks.forums --dumps dumps --output_dir runs/forums-benchmark
  python -m benchmarks.forums --dumps dumps --output_dir runs/forums-benchmark --forums 60 --smallest 5 --largest 500"""


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--dumps", required=True, type=Path, help="Folder of folders with a Posts.xml or .xml.xz each.")
    parser.add_argument("--output_dir", required=True, type=Path, help="Where made dumps, corpora and runs go.")
    parser.add_argument("--forums", type=int, default=140, help="How many forums are made.")
    parser.add_argument("--smallest", type=int, default=30, help="Questions of the smallest.")
    parser.add_argument("--largest", type=int, default=30_000, help="Questions of the largest.")
    parser.add_argument("--pairs", type=int, default=32, help="Pairs of an update.")
    parser.add_argument("--rounds", type=int, default=200, help="Rounds of all forums that are read without training.")
    parser.add_argument("--steps", type=int, default=3000, help="Updates of each run.")
    parser.add_argument("--every", type=int, default=100, help="Updates between two readings.")
    args = parser.parse_args()
    if not 2 <= args.smallest <= args.largest or min(args.forums, args.pairs, args.rounds) < 1 or args.every < 5:
        raise KinspanError("--smallest must be 2 or more and --largest no less, --every 5 or more, the others above 0")
    dumps, corpora, model = args.output_dir / "dumps", args.output_dir / "corpora", args.output_dir / "model"
    forums = plan_forums(args.forums, args.smallest, args.largest)
    if not (dumps / "made").exists():
        for name in write_dump(dumps, forums, read_material(args.dumps), SEED):
            print(f"made {name}, {forums[name]:,} questions", flush=True)
        (dumps / "made").touch()
    kept = args.output_dir / "prepared.json"
    if not kept.exists():
        kept.write_text(json.dumps(_common.in_fresh_process(prepare_all, dumps, corpora, forums)))
    figures: dict[str, Any] = json.loads(kept.read_text())
    growth = figures["memory_last"] / figures["memory_first"] - 1
    header = ("preparing, one process", "questions", "tokens", "s", "of processor", "MB after the first", "last", "bar")
    cells = [f"{figures[name]:,.0f}" for name in ("documents", "tokens", "seconds", "processor_seconds")]
    held = f"{figures['memory_first']:,.0f}", f"{figures['memory_last']:,.0f} ({100 * growth:+.1f}%)"
    _common.print_table(header, [(f"{len(forums)} forums", *cells, *held, f"{100 * BAR:+.0f}%")])
    write_model(model)
    rows = []
    asked = [(f"{way}: {name}", way, *what) for way in ("reading", "training") for name, what in RUNS.items()]
    for name, way, objective, chosen, least in asked:
        parts = count_forums({name: size for name, size in forums.items() if size >= least}, chosen)
        if way == "reading":
            given = corpora, model, objective, chosen, least, args.pairs, args.rounds
            readings = _common.in_fresh_process(read_rounds, *given)
        else:
            run = args.output_dir / "runs" / f"{objective}-{chosen}"
            readings = train(corpora, model, run, objective, chosen, least, args.pairs, args.steps, args.every)
        first, last, growth = compare(readings, parts)
        cells = [
            cell
            for part in (first, last)
            for cell in (
                f"{part[0]:,} to {part[-1]:,}",
                f"{statistics.median(readings[step].memory for step in part) / 1e6:,.1f}",
            )
        ]
        end = readings[last[-1]]
        rows.append((name, f"{parts}", *cells, f"{100 * growth:+.2f}%", f"{end.files}", f"{end.shards}"))
        figures |= {f"{name}/growth": growth, f"{name}/files": end.files, f"{name}/parts": parts}
        print(f"{rows[-1]}", flush=True)
        figures |= {f"{name}/memory_{step}": found.memory for step, found in readings.items()}
    print()
    header = ("round robin", "forums", "steps", "MB", "steps", "MB", "growth", "open files", "mapped shards")
    _common.print_table(header, rows)
    print(f"bar: at most {100 * BAR:.0f}% of growth")
    _common.report("forums", figures | {"bar": BAR, "steps": args.steps, "pairs": args.pairs})


if __name__ == "__main__":
    _common.run(main)
