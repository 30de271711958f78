"""Measures how many tokens the feeder of pretrain/batches.py makes: with one, two and four threads, and at which cost.

A rank of a node of eight takes its share of global batches, cut into micro-batches and made into tensors, as the
training loop does (on a CPU nothing is pinned or copied). The configurations take turns. Beside tokens/s by the clock
stands what does not depend on how busy the machine is: tokens per second of processor time, all threads together, and
how many cores eight ranks therefore need for the node's tokens/s. Each rank builds every block of anchors itself: that
is measured apart, and counted in the cores, eight times for each block.

Bar: 6 M tokens/s for eight GPUs from at most eight cores."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import torch

from benchmarks import _common
from benchmarks.peers.case import MODELS, Case, open_stream
from data_pipeline.errors import KinspanError
from data_pipeline.sampling.stream import PairStream
from pretrain.batches import Feeder, average_tokens, to_tensors
from pretrain.runtime.layout import Layout

WORLD = 8  # ranks of a node
THREADS = (1, 2, 4)
ACCUMULATION = 2  # micro-batches of a step
BAR = 8.0  # cores

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/feed.py --corpus corpora/aa-roberta"""


@dataclass
class Spent:
    """Sums over the rounds of a configuration."""

    tokens: int = 0
    seconds: float = 0.0
    processor: float = 0.0


def feed(stream: PairStream, layout: Layout, first: int, threads: int, steps: int, spent: Spent) -> None:
    """Takes ``steps`` steps of rank 0 from a feeder, and adds up what that took."""
    cpu = torch.device("cpu")
    began, used = time.perf_counter(), time.process_time()
    feeder = Feeder(stream, layout, 0, first, threads, end=first + steps)
    for _ in range(steps):
        for batch in filter(None, feeder.next()):
            to_tensors(batch, cpu)
            spent.tokens += batch.num_tokens
    feeder.close()
    spent.seconds += time.perf_counter() - began
    spent.processor += time.process_time() - used


def measure_block(case: Case) -> float:
    """Seconds of processor time that a rank takes to build a block, per token of the block's pairs."""
    stream = open_stream(case)
    stream.batch(0, 1)  # checks the shards
    stream = open_stream(case)
    used = time.process_time()
    stream.batch(0, 1)
    return (time.process_time() - used) / (average_tokens(stream) * stream.epoch_pairs)


def count_cores(target: float, spent: Spent, block: float) -> float:
    """Cores that make ``target`` tokens/s for a node, whose ranks share the pairs but each build every block."""
    return target * (spent.processor / spent.tokens + WORLD * block)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    parser.add_argument("--model", default="roberta-base", choices=("minilm", *MODELS), help="For its token loss.")
    parser.add_argument("--objectives", nargs="+", default=("ssp", "sp"), help="Whose pairs.")
    parser.add_argument("--micro", nargs="+", type=int, default=(64, 256), help="Pairs of a micro-batch.")
    parser.add_argument("--steps", type=int, default=40, help="Steps of each configuration in a round.")
    parser.add_argument("--rounds", type=int, default=4, help="Rounds that count; one more warms up.")
    parser.add_argument("--target", type=float, default=6e6, help="Tokens/s of a node.")
    args = parser.parse_args()
    if min(args.steps, args.rounds, *args.micro) < 1 or args.target <= 0:
        raise KinspanError("--steps, --rounds, --micro and --target must be above 0")
    torch.set_num_threads(1)  # the feeder's threads are Python's
    cases = {name: Case(args.model, name, "fp32", args.corpus, pairs=0, rounds=0) for name in args.objectives}
    streams, blocks = {}, {}
    for name, case in cases.items():
        streams[name], blocks[name] = open_stream(case), measure_block(case)
    spent = {(name, micro, threads): Spent() for name in cases for micro in args.micro for threads in THREADS}
    for number in range(args.rounds + 1):
        for (name, micro, threads), own in spent.items():
            layout = Layout(micro * ACCUMULATION * WORLD, micro, WORLD)
            feed(streams[name], layout, number * args.steps, threads, args.steps, own if number else Spent())
        print(f"round {number} of {args.rounds}{'' if number else ' (warms up)'}", flush=True)
    show(spent, blocks, args.target)


def show(spent: dict[tuple[str, int, int], Spent], blocks: dict[str, float], target: float) -> None:
    rows, figures = [], {}
    for (name, micro, threads), own in spent.items():
        rate, efficiency = own.tokens / own.seconds, own.tokens / own.processor
        cores = count_cores(target, own, blocks[name])
        one = spent[name, micro, 1]
        cells = (f"{rate / 1e6:.1f} M", f"{rate / (one.tokens / one.seconds):.2f}", f"{efficiency / 1e6:.1f} M")
        rows.append((f"{name}, micro-batches of {micro}", str(threads), *cells, f"{cores:.2f}"))
        key = f"{name}/{micro}/{threads}"
        figures |= {f"{key}/tokens_per_second": rate, f"{key}/cores": cores}
        figures[f"{key}/tokens_per_processor_second"] = efficiency
    header = ("one rank of eight", "threads", "tokens/s", "of one thread", "per core-second", "cores for the node")
    _common.print_table(header, rows)
    for name, block in blocks.items():
        print(f"{name}: eight ranks' building of blocks is {WORLD * block * target:.2f} of these cores")
        figures[f"{name}/block_cores"] = WORLD * block * target
    _common.report("feed", figures | {"target": target, "bar": BAR})


if __name__ == "__main__":
    _common.run(main)
