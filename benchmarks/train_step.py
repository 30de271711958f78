"""Measures one update (forward, backward, optimizer) against the usual ways, real tokens per second.

Ours:       pretrain.step.train_step with the engine that kinspan pretrain builds, on packed batches.
Trainer:    the Hugging Face Trainer with its best settings (SDPA, fused AdamW, ``bf16=True`` for bf16), padded to the
            longest pair of the batch, and the same with its sampler that groups pairs by length.

All train on the same pairs with the same masks (grouped by length: on pairs of the same stream), with dropout, in
processes of their own that take turns, an update each. What makes a batch is not counted for anyone.

Bars for ours over the Trainer: MiniLM-L6 3.0 on SSP and 4.0 on SP, RoBERTa-base 1.9 and 3.2. bf16 is left out where the
processor does not compute in it."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _common
from benchmarks.peers import trainings
from benchmarks.peers.case import Case
from benchmarks.peers.turns import Update, compare, measure_rate, take_turns
from data_pipeline.core.errors import KinspanError

MODELS = ("minilm", "roberta-base")
WAYS = {
    "ours": trainings.train_ours,
    "Trainer": trainings.train_by_trainer,
    "Trainer, by length": trainings.train_by_trainer_and_length,
}

EPILOG = """example:
  kinspan prepare --input enwiki2015_AA.jsonl.xz --output_dir corpora/aa
  kinspan prepare --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/train_step.py --corpus corpora/aa --roberta_corpus corpora/aa-roberta"""


def list_cases(args: Any) -> list[Case]:
    from pretrain.engine.device import choose_precision

    if args.quick:
        return [Case("small-bert", "sp", "fp32", args.corpus, pairs=4, rounds=2)]
    if "roberta-base" in args.models and not args.roberta_corpus:
        raise KinspanError("--models roberta-base needs a corpus of its own tokenizer: give --roberta_corpus")
    corpora = {"roberta-base": args.roberta_corpus}
    return [
        Case(model, objective, precision, corpora.get(model, args.corpus), args.pairs, args.rounds)
        for model in args.models
        for objective in args.objectives
        for precision in args.precisions
        if precision == "fp32" or choose_precision("auto", 1) == "bf16"  # emulated, it takes a hundred times as long
    ]


def list_rows(updates: dict[str, list[Update]]) -> list[tuple[str, ...]]:
    """Returns a row for each way, ours the first."""
    rows = []
    for way, done in updates.items():
        ratio, least, most = compare(updates["ours"], done)
        losses = ", ".join(f"{name} {value:.2f}" for name, value in done[-1].losses.items())
        rows.append((way, f"{measure_rate(done):,.0f}", f"{ratio:.2f}", f"{least:.2f} to {most:.2f}", losses))
    return rows


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help="Corpus folder, with BERT's tokenizer.")
    parser.add_argument("--roberta_corpus", help="The same with RoBERTa's tokenizer.")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="Which.")
    parser.add_argument("--objectives", nargs="+", default=("ssp", "sp"), help="Whose pairs.")
    parser.add_argument("--precisions", nargs="+", default=("fp32", "bf16"), choices=("fp32", "bf16"), help="Which.")
    parser.add_argument("--pairs", type=int, default=32, help="Pairs of an update, in one micro-batch.")
    parser.add_argument("--rounds", type=int, default=4, help="Updates of each that count; one more warms up.")
    parser.add_argument("--threads", type=int, default=2, help="Of each way, while it is its turn.")
    parser.add_argument("--quick", action="store_true", help="Small models, a few pairs: proves that all of it works.")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the ways' processes, which start later, read it
    for case in list_cases(args):
        title = f"{case.model}, {case.objective}, {case.precision}, {case.pairs} pairs"
        rows = list_rows(take_turns(WAYS, case, case.rounds))
        _common.print_table((title, "tokens/s", "ours is x", "by round", "last losses"), rows)
    _common.print_environment()


if __name__ == "__main__":
    _common.run(main)
