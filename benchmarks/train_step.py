"""Measures one update (forward, backward, optimizer) against the usual ways, real tokens per second.

Ours:       pretrain.step.train_step with the engine that launch/pretrain.py builds, on packed batches.
Trainer:    the Hugging Face Trainer with its best settings (SDPA, fused AdamW, ``bf16=True`` for bf16), padded to the
            longest pair of the batch, and the same with its sampler that groups pairs by length.
DeepSpeed:  a plain Hugging Face model in a DeepSpeed engine.
ELECTRA:    for replaced-token detection in place of these: a plain loop over generator and discriminator.

All train on the same pairs with the same masks (grouped by length: on pairs of the same stream), with dropout, in
processes of their own that take turns, an update each. What makes a batch is not counted for anyone. SP is also
measured without our dropout.

Bars for ours over the Trainer: MiniLM-L6 3.0 on SSP and 4.0 on SP, RoBERTa-base 1.9 and 3.2; over the ELECTRA loop 2;
on SP with dropout at least .87 of the speed without it (which is then 15% more). bf16 is left out where the processor
does not compute in it."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from benchmarks.peers import electra_loop, ours, plain_deepspeed, trainer
from benchmarks.peers.case import Case
from benchmarks.peers.turns import Update, Way, compare, measure_rate, take_turns
from data_pipeline.core.errors import KinspanError

BARS = {("minilm", "ssp"): 3.0, ("minilm", "sp"): 4.0, ("roberta-base", "ssp"): 1.9, ("roberta-base", "sp"): 3.2}
ELECTRA_BAR, DROPOUT_BAR = 2.0, 1 / 1.15
MODELS = ("minilm", "roberta-base", "electra-base")
OURS, NO_DROPOUT, TRAINER, BY_LENGTH = "ours", "ours, no dropout", "Trainer", "Trainer, by length"
DEEPSPEED, ELECTRA = "DeepSpeed", "ELECTRA loop"

EPILOG = """example:
  kinspan prepare --input enwiki2015_AA.jsonl.xz --output_dir corpora/aa
  kinspan prepare --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/train_step.py --corpus corpora/aa --roberta_corpus corpora/aa-roberta
  python benchmarks/train_step.py --corpus corpora/aa --models minilm --objectives ssp --precisions fp32
  python benchmarks/train_step.py --corpus corpora/aa --quick"""


def list_ways(case: Case) -> dict[str, tuple[Way, Any]]:
    """What takes turns in a case, by name."""
    ways: dict[str, tuple[Way, Any]] = {OURS: (ours.train, case)}
    if case.objective == "sp":
        ways[NO_DROPOUT] = (ours.train, replace(case, dropout=False))
    if case.detects_replaced:
        return ways | {ELECTRA: (electra_loop.train, case)}
    ways |= {TRAINER: (trainer.train, case), BY_LENGTH: (trainer.train_by_length, case)}
    return ways | {DEEPSPEED: (plain_deepspeed.train, case)}


def list_cases(args: Any) -> list[Case]:
    if args.quick:
        quick = Case("small-bert", "sp", "fp32", args.corpus, pairs=4, rounds=2)
        return [quick, replace(quick, model="small-electra", objective="ssp")]
    corpora = {"roberta-base": args.roberta_corpus}
    wanted = [(m, o, p) for m in args.models for o in args.objectives for p in args.precisions]
    missing = {m for m, _, _ in wanted if not corpora.get(m, args.corpus)}
    if missing:
        raise KinspanError(
            f"{', '.join(missing)} needs a corpus of its own tokenizer: give --roberta_corpus, or --models"
        )
    return [Case(m, o, p, corpora.get(m, args.corpus), args.pairs, args.rounds) for m, o, p in wanted]


def leave_out_slow(cases: list[Case]) -> list[Case]:
    """Without bf16 where it is emulated, which takes a hundred times as long."""
    from pretrain.engine.device import choose_precision

    if choose_precision("auto", 1) == "bf16" or all(case.precision != "bf16" for case in cases):
        return cases
    print("bf16 is left out: this processor does not compute in it", flush=True)
    return [case for case in cases if case.precision != "bf16"]


def measure(case: Case, results: Path | None) -> dict[str, list[Update]]:
    """The updates of each way; taken from ``results`` where they are there, else added to it."""
    key = asdict(case)
    for line in results.read_text().splitlines() if results and results.exists() else ():
        found = json.loads(line)
        if found["case"] == key:
            print(f"taken from {results}", flush=True)
            return {way: [Update(**update) for update in done] for way, done in found["updates"].items()}
    done = take_turns(list_ways(case), case.rounds, lambda line: print(f"  {line}", flush=True))
    if results:
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("a") as file:
            file.write(
                json.dumps({"case": key, "updates": {w: [asdict(u) for u in us] for w, us in done.items()}}) + "\n"
            )
    return done


def find_bar(case: Case, way: str) -> float | None:
    """How many times as fast as this way ours is to be."""
    if way == ELECTRA:
        return ELECTRA_BAR
    return BARS.get((case.model, case.objective)) if way == TRAINER else DROPOUT_BAR if way == NO_DROPOUT else None


def show(case: Case, done: dict[str, list[Update]]) -> dict[str, float]:
    """Prints the table of a case; returns its figures."""
    rows, figures = [], {}
    for way, updates in done.items():
        rate, bar = measure_rate(updates), find_bar(case, way)
        ratio, least, most = compare(done[OURS], updates)
        losses = ", ".join(f"{name} {value:.2f}" for name, value in updates[-1].losses.items())
        cells = (
            ("", "", "") if way == OURS else (f"{ratio:.2f}", f"{least:.2f} to {most:.2f}", f"{bar:.2f}" if bar else "")
        )
        rows.append((way, f"{rate:,.0f}", *cells, losses))
        name = f"{case.model}/{case.objective}/{case.precision}/{way}"
        figures[f"{name}/tokens_per_second"] = rate
        if way != OURS:
            figures[f"{name}/ratio"] = ratio
    title = f"{case.model}, {case.objective}, {case.precision}, {case.pairs} pairs"
    _common.print_table((title, "tokens/s", "ours is x", "by round", "bar", "last losses"), rows)
    print(flush=True)
    return figures


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--roberta_corpus", help="The same with RoBERTa's tokenizer.")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="Which.")
    parser.add_argument("--objectives", nargs="+", default=("ssp", "sp"), help="Whose pairs.")
    parser.add_argument("--precisions", nargs="+", default=("fp32", "bf16"), choices=("fp32", "bf16"), help="Which.")
    parser.add_argument("--pairs", type=int, default=32, help="Pairs of an update, in one micro-batch.")
    parser.add_argument("--rounds", type=int, default=4, help="Updates of each that count; one more warms up.")
    parser.add_argument("--threads", type=int, default=2, help="Of each way, while it is its turn.")
    parser.add_argument(
        "--results", type=Path, help="A file that keeps what was measured; cases in it are not repeated."
    )
    parser.add_argument("--quick", action="store_true", help="Small models, a few pairs: proves that all of it works.")
    args = parser.parse_args()
    if min(args.pairs, args.rounds, args.threads) < 1:
        raise KinspanError(f"--pairs {args.pairs} --rounds {args.rounds} --threads {args.threads}: must be above 0")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the ways' processes, which start later, read it
    figures: dict[str, Any] = {}
    for case in leave_out_slow(list_cases(args)):
        print(f"{case.model}, {case.objective}, {case.precision}:", flush=True)
        figures |= show(case, measure(case, args.results))
    _common.report("train_step", figures | {"pairs": args.pairs, "rounds": args.rounds, "threads": args.threads})


if __name__ == "__main__":
    _common.run(main)
