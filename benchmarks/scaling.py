"""Measures how training scales on this machine, and works out what 8, 64 and 512 GPUs would do.

Measured, taking turns, one thread a process: MiniLM-L6 on SSP with one rank and two, whole and in four micro-batches,
at 64, 128 and 256 tokens; a model of BERT's base size; and the data path on 1, 4 and 16 times the corpus. All stand
beside the first row of their table.

Worked out for RoBERTa-base: a step takes the GPU its operations (counted) at an assumed utilisation, times the ranks'
imbalance of tokens (counted on the corpus), and then its communication, which nothing hides: the gradients are
all-reduced in fp32, the updated weights gathered in bf16 (ZeRO 1; bytes counted), over the slowest link (its bandwidth
assumed). Not in it: validation, checkpoints, and that a GPU computes small micro-batches less well. No GPU was
measured.

benchmarks/SCALING.md explains the tables."""

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np

from benchmarks import _common
from benchmarks.cluster import Cluster, Work, count_communication, count_imbalance, predict
from benchmarks.peers import ours
from benchmarks.peers.case import Case, open_stream
from benchmarks.peers.turns import Update, Way, compare, measure_rate, take_turns
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError

GPUS = (1, 8, 64, 512)
BATCHES = (4096, 16_384, 65_536)  # pairs of an update; Di Liello et al. train with 4,096
TIMES = (1, 4, 16)

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --output_dir corpora/aa
  python benchmarks/scaling.py --corpus corpora/aa"""


def count_work(lengths: np.ndarray) -> Work:
    """RoBERTa-base on pairs of these lengths, without making its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

    from benchmarks.peers.case import MODELS
    from objectives.mlm import PROBABILITY
    from pretrain.metrics import FlopCounter
    from pretrain.modeling.pair_model import assemble

    kind, options = MODELS["roberta-base"]
    config = AutoConfig.for_model(kind, **options)
    with torch.device("meta"):
        classes = (AutoModelForSequenceClassification, AutoModelForMaskedLM)
        model = assemble(*(auto.from_config(config) for auto in classes), ("ssp",))
    counter = FlopCounter(model)
    matrices = 6 * (counter.at_tokens + PROBABILITY * counter.at_masked)
    flops = matrices + counter.count_attention(lengths.astype(float)) / float(lengths.sum())
    return Work(sum(p.numel() for p in model.parameters()), flops, float(lengths.mean()))


def list_ways(args: Any) -> dict[str, tuple[Way, Any]]:
    base = Case("minilm", "ssp", "fp32", args.corpus, pairs=32, rounds=args.rounds)
    large = replace(base, model="bert-base", pairs=8)
    if args.quick:
        base, large = (replace(base, model="small-bert", pairs=8) for _ in range(2))
    return {
        "one rank": (ours.train, base),
        "two ranks": (ours.train_on_two_ranks, base),
        "in 4 micro-batches": (ours.train, replace(base, micro=base.pairs // 4)),
        "64 tokens": (ours.train, replace(base, max_length=64)),
        "256 tokens": (ours.train, replace(base, max_length=256)),
        "BERT-base": (ours.train, large),
    }


def measure_corpora(folder: str, size: int = 4096, batches: int = 8) -> dict[int, float]:
    """Tokens per second of processor time that a stream makes of a corpus and of 4 and 16 times it."""
    from benchmarks.stream import larger_corpus

    rates = {}
    for times in TIMES:
        with tempfile.TemporaryDirectory() as larger:
            larger_corpus(Path(folder), Path(larger), times)
            stream = open_stream(Case("minilm", "ssp", "fp32", larger, pairs=size, rounds=0))
            stream.batch(0, size)
            used = time.process_time()
            tokens = sum(stream.batch(k * size, size).num_tokens for k in range(1, batches + 1))
            rates[times] = tokens / (time.process_time() - used)
    return rates


def read_lengths(corpus: str, pairs: int) -> np.ndarray:
    stream = open_stream(Case("minilm", "ssp", "fp32", corpus, pairs=0, rounds=0))
    return np.diff(stream.batch(0, pairs).starts)


def show_measured(done: dict[str, list[Update]], corpora: dict[int, float]) -> dict[str, Any]:
    first, rows, figures = done["one rank"], [], {}
    for name, updates in done.items():
        ratio, least, most = compare(updates, first)
        rows.append((name, f"{measure_rate(updates):,.0f}", f"{ratio:.2f}", f"{least:.2f} to {most:.2f}"))
        figures |= {f"{name}/tokens_per_second": measure_rate(updates), f"{name}/ratio": ratio}
    _common.print_table(("measured, one thread a process", "tokens/s", "of one rank", "by round"), rows)
    print()
    rows = [(f"{times} x", f"{rate / 1e6:.1f} M", f"{rate / corpora[1]:.2f}") for times, rate in corpora.items()]
    _common.print_table(("corpus", "tokens per core-second", "of 1 x"), rows)
    print()
    return figures | {f"corpus_{times}x": rate for times, rate in corpora.items()}


def show_predicted(work: Work, lengths: np.ndarray, cluster: Cluster) -> dict[str, Any]:
    print(f"RoBERTa-base: {work.parameters / 1e6:.1f} M parameters, {work.flops / 1e9:.3f} GFLOP per token (counted), ")
    print(f"{work.pair_tokens:.1f} tokens per pair (counted); assumed: {cluster}\n")
    rows, figures = [], {}
    for gpus in GPUS:
        sent, seconds = count_communication(work.parameters, gpus, cluster)
        cells = [f"{sent / 1e9:.2f} GB", f"{1e3 * seconds:.1f} ms"]
        for pairs in BATCHES:
            imbalance = count_imbalance(lengths, gpus, pairs)
            rate, efficiency = predict(work, gpus, pairs, imbalance, cluster)
            cells.append(f"{100 * efficiency:.0f}% ({imbalance:.2f}), {rate / 1e6:,.1f} M/s")
            figures |= {f"{gpus}/{pairs}/efficiency": efficiency, f"{gpus}/{pairs}/tokens_per_second": rate}
        rows.append((str(gpus), *cells))
    header = ["GPUs, predicted", "each sends", "which takes", *(f"{pairs:,} pairs" for pairs in BATCHES)]
    _common.print_table(header, rows)
    print("in a cell: efficiency (imbalance of tokens), tokens/s of all")
    return figures


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--rounds", type=int, default=3, help="Updates of each that count; one more warms up.")
    parser.add_argument("--peak_tflops", type=float, default=989.0, help="Of a GPU in bf16; H100 and H200: 989.")
    parser.add_argument("--mfu", type=float, default=0.4, help="Share of it that the model reaches: an assumption.")
    parser.add_argument("--within", type=float, default=300.0, help="GB/s of an all-reduce within a node: assumed.")
    parser.add_argument("--between", type=float, default=200.0, help="GB/s of an all-reduce between nodes: assumed.")
    parser.add_argument("--latency", type=float, default=100.0, help="Microseconds of a collective: assumed.")
    parser.add_argument("--predict_only", action="store_true", help="Without what is measured here.")
    parser.add_argument("--quick", action="store_true", help="A small model: proves that all of it works.")
    args = parser.parse_args()
    numbers = (args.rounds, args.peak_tflops, args.mfu, args.within, args.between)
    if min(numbers) <= 0 or args.latency < 0:
        raise KinspanError(
            "--rounds, --peak_tflops, --mfu, --within and --between must be above 0, --latency not below"
        )
    Corpus(args.corpus)
    os.environ["OMP_NUM_THREADS"] = "1"
    figures: dict[str, Any] = {}
    if not args.predict_only:
        done = take_turns(list_ways(args), args.rounds, lambda line: print(line, flush=True))
        figures |= show_measured(done, measure_corpora(args.corpus))
    lengths = read_lengths(args.corpus, 4 * max(BATCHES))
    cluster = Cluster(args.mfu * args.peak_tflops * 1e12, args.within * 1e9, args.between * 1e9, args.latency * 1e-6)
    figures |= show_predicted(count_work(lengths), lengths, cluster)
    _common.report("scaling", figures)


if __name__ == "__main__":
    _common.run(main)
