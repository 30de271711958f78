"""Measures whether many forums fit: preparing 140 of them, and training round robin over all, one step a forum.

The forums are made (dump.py) from the real dumps of --dumps, their sizes three orders of magnitude
apart, and are written in StackExchange's format, so that the reader of dumps reads them. One process prepares all, the
largest first. Then, on title and body with the sets `all` and `balanced`, and on duplicates, a process reads batches
for many rounds and does nothing else, and launch/pretrain.py trains a tiny model. Memory is RssAnon of the one process:
what no file backs. Readings count when each forum has had two batches; compared are the medians of the first third of
them and of the last. Speed is that of a tiny model on whatever machine this is, and no figure of merit.

Bar: at most 3% more memory at the end than at the beginning."""

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks.forums.dump import plan_forums, read_material, write_dump
from benchmarks.steady import Reading, measure_run, read_process
from data_pipeline.errors import KinspanError
from pretrain.planning.forums import BALANCED, LARGEST, OF_BENCHMARKS, name_forum

BAR = 0.03
SEED = 1
RUNS = {  # objective, --forums and --min_questions
    "title_body, all": ("title_body", "all", 0),
    "title_body, balanced": ("title_body", "balanced", 0),
    "duplicate, all": ("duplicate", "all", 100),
}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

EPILOG = """example, with dumps/beer/Posts.xml and others:
  python -m benchmarks.forums --dumps dumps --output_dir runs/forums-benchmark
  python -m benchmarks.forums --dumps dumps --output_dir runs/forums-benchmark --forums 60 --smallest 5 --largest 500"""


def prepare_all(dumps: Path, corpora: Path, forums: dict[str, int]) -> dict[str, float]:
    """Prepares each forum's dump as a corpus, in this process, and returns what it took and what is in them."""
    from data_pipeline.prepare.pipeline import prepare
    from objectives import OBJECTIVES
    from pretrain.modeling.default_model import default_model
    from pretrain.runtime.out_of_memory import return_freed_memory

    began, spent = time.perf_counter(), time.process_time()
    held: list[float] = []
    for name in forums:
        folder = f"{name}.stackexchange.com"
        prepare([str(dumps / folder)], default_model(), corpora / folder, OBJECTIVES, quiet=True)
        return_freed_memory()
        held.append(_common.rss_anon())
    seconds, processor = time.perf_counter() - began, time.process_time() - spent
    totals = [
        json.loads((corpora / f"{name}.stackexchange.com/manifest.json").read_text())["totals"] for name in forums
    ]
    facts = {name: float(sum(total[name] for total in totals)) for name in ("documents", "tokens")}
    return {
        **facts,
        "seconds": seconds,
        "processor_seconds": processor,
        "memory_first": held[0],
        "memory_last": held[-1],
        "memory_most": max(held),
        "peak": _common.peak_rss(),
    }


def write_model(folder: Path) -> None:
    """A tiny encoder as a config alone, so that training starts from scratch."""
    from transformers import AutoConfig

    from data_pipeline.tokenizers import load_tokenizer
    from pretrain.modeling.default_model import default_model

    tokenizer = load_tokenizer(default_model())
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **TINY)
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))


def count_forums(forums: dict[str, int], chosen: str) -> int:
    """How many of the forums a set has."""
    known = {"balanced": set(BALANCED), "largest": set(LARGEST)}.get(chosen, set(forums) - set(OF_BENCHMARKS))
    return len({name_forum(name) for name in forums} & known)


def train(
    corpora: Path,
    model: Path,
    folder: Path,
    objective: str,
    chosen: str,
    least: int,
    pairs: int,
    steps: int,
    every: int,
) -> dict[int, Reading]:
    """Readings of a run over the forums of a set."""
    flags = ["--corpus", *map(str, sorted(corpora.iterdir())), "--model", str(model), "--objective", objective]
    flags += [
        "--forums",
        chosen,
        "--min_questions",
        str(least),
        "--schedule",
        "round_robin",
        "--max_steps",
        str(steps),
        "--eval_pairs",
        "0",
    ]
    flags += [
        "--global_batch_size",
        str(pairs),
        "--micro_batch_size",
        str(pairs),
        "--max_length",
        "128",
        "--precision",
        "fp32",
    ]
    flags += ["--mlm_probability", "0", "--mlm_weight", "0", "--save_steps", str(steps), "--log_steps", str(every // 5)]
    return measure_run(flags, folder, every)


def read_rounds(
    corpora: Path, model: Path, objective: str, chosen: str, least: int, pairs: int, rounds: int
) -> dict[int, Reading]:
    """Readings of a process that makes the batches of so many rounds, twenty of them, and does nothing else."""
    from data_pipeline.sampling.stream import PairStream
    from data_pipeline.tokenizers import load_tokenizer, read_pair_template
    from pretrain.config import PretrainConfig
    from pretrain.planning.corpora import drop_untrainable, list_sources, mix_as, open_for
    from pretrain.runtime.out_of_memory import return_freed_memory
    from pretrain.runtime.settings import cache_settings

    given = {
        "corpus": sorted(map(str, corpora.iterdir())),
        "objective": objective,
        "forums": chosen,
        "min_questions": least,
    }
    config = PretrainConfig(**given, schedule="round_robin", global_batch_size=pairs)  # type: ignore[arg-type]
    tokenizer, sources = load_tokenizer(str(model)), list_sources(config)
    opened = open_for(tokenizer, sources, cache_settings(config))
    mixture, _ = drop_untrainable(mix_as(config, sources).read_from(*opened))
    stream = PairStream(mixture, template=read_pair_template(tokenizer), seed=SEED, max_length=_common.MAX_LENGTH)
    steps = rounds * len(mixture.parts)
    readings: dict[int, Reading] = {}
    for step in range(1, steps + 1):
        stream.batch(step * pairs, pairs)
        if step % (steps // 20) == 0:
            return_freed_memory()
            if found := read_process(os.getpid(), 0.0):
                readings[step] = found
    return readings


def compare(readings: dict[int, Reading], parts: int) -> tuple[list[int], list[int], float]:
    """The first and the last readings after two rounds of all forums, and how much more memory the last ones have.

    Of each a third, and their median: a reading falls anywhere in a step, whose tensors come and go.
    """
    steps = sorted(readings)[:-1]  # at the very last one the checkpoint is written
    settled = [step for step in steps if step > 2 * parts]
    third = len(settled) // 3
    if not third:
        raise KinspanError(f"too few readings after two rounds of {parts} forums: give more --steps")
    first, last = settled[:third], settled[-third:]
    held = [statistics.median(readings[step].memory for step in part) for part in (first, last)]
    return first, last, held[1] / held[0] - 1


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
