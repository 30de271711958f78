"""Works out the hours, GPU-hours and price of every pre-training recipe on 8 A100, 8 H100 and 64 H100.

No run on a GPU stands behind it unless --measured gives one: the speed of a GPU is then that of benchmarks/cluster.py's
model, its data sheet's times an assumed utilisation. What a recipe computes is counted: its updates, the tokens of its
pairs (on --corpus and --bert_corpus, or full length), the operations of a token, the imbalance of the ranks' tokens.

--page writes docs/numbers.md, which explains the figures."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the configs of the papers' models are built in

import numpy as np

from benchmarks import _common
from benchmarks.cluster import Cluster, Work, count_imbalance, predict
from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically
from data_pipeline.sampling.stream import PairStream
from launch._cli import parse
from pretrain.config import PretrainConfig
from pretrain.metrics import PEAK_TFLOPS

if TYPE_CHECKING:
    from pretrain.planning.plan import Plan

RECIPES = _common.ROOT / "launch" / "recipes"
MADE_FOR_GPUS = ("roberta-base", "electra-base")  # how the names of the recipes begin
PAGE = _common.ROOT / "docs" / "numbers.md"
MACHINES = (("A100", 8), ("H100", 8), ("H100", 64))
WITHIN = {"A100": 200.0, "H100": 300.0}  # GB/s of an all-reduce within a node: assumed
BETWEEN = {"A100": 100.0, "H100": 200.0}  # and between nodes of 8
SAMPLED = 16  # global batches whose tokens are counted
MODEL, MEASURED = "model", "measured"

EPILOG = """examples:
  python benchmarks/costs.py --price 2.5
  python benchmarks/costs.py --corpus corpora/roberta --bert_corpus corpora/bert --price A100=1.5 H100=2.5
  python benchmarks/costs.py --measured gpu-results/summary.json --price 2.5"""


@dataclass(frozen=True)
class Recipe:
    """What a recipe computes.

    pair_tokens: mean tokens of a pair; of a corpus, or full length
    lengths:     tokens of the pairs of a few batches; None where no corpus was given
    """

    name: str
    plan: "Plan"
    pair_tokens: float
    lengths: np.ndarray | None

    @property
    def tokens(self) -> float:
        return self.pair_tokens * self.plan.config.global_batch_size * self.plan.steps


@dataclass(frozen=True)
class Cost:
    """A recipe on some GPUs. source: MODEL or MEASURED, where the speed of one GPU is from"""

    gpu: str
    gpus: int
    tokens_per_second: float
    hours: float
    source: str

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.gpus


def read_recipe(path: Path, corpus: str | None, bert_corpus: str | None) -> Recipe:
    """The recipe in a file, with the pairs of the corpus that has its model's tokenizer."""
    from pretrain.planning.plan import make_plan  # takes seconds to import

    config = parse(PretrainConfig, "", argv=["--config", str(path)])
    place = bert_corpus if config.model and "electra" in config.model else corpus
    plan = make_plan(replace(config, corpus=[place] if place else config.corpus))
    if place is None:
        return Recipe(path.stem, plan, float(plan.max_length), None)
    lengths = _read_lengths(plan, place)
    return Recipe(path.stem, plan, float(lengths.mean()), lengths)


def _read_lengths(plan: "Plan", place: str) -> np.ndarray:
    opened = Corpus(place)
    template = tokenizers.read_pair_template(tokenizers.load_tokenizer(str(opened.tokenizer_folder)))
    mixture = plan.mixture.read_from(opened)
    stream = PairStream(mixture, template=template, seed=plan.config.seed, max_length=plan.max_length)
    count = min(SAMPLED * plan.config.global_batch_size, stream.epoch_pairs)
    return np.diff(stream.batch(0, count).starts)


def find_measured(rows: Sequence[dict[str, Any]], gpu: str, recipe: Recipe) -> float | None:
    """FLOP/s of one GPU in this recipe, from the rows of ``make gpu``; None where they are of another GPU or have none.

    That of the fastest micro-batch of the recipe's objective; of a mixture, of any objective at its length.
    """
    kinds = [str(row["figures"].get("gpu", "")) for row in rows]
    if not any(gpu in kind for kind in kinds):
        return None
    model = "ELECTRA-base" if recipe.plan.token_loss == "rtd" else "RoBERTa-base"
    objectives = {part.objective.name.upper() for part in recipe.plan.mixture.parts}
    speeds = [
        row["figures"]["TFLOP/s"]
        for row in rows
        if row.get("check") == model
        and "--" not in row["what"]
        and row["what"].startswith(tuple(f"{name} at {recipe.plan.max_length}," for name in objectives))
        and "TFLOP/s" in row["figures"]
    ]
    return 1e12 * max(speeds) if speeds else None


def work_out(recipe: Recipe, gpu: str, gpus: int, mfu: float, rows: Sequence[dict[str, Any]]) -> Cost:
    """The cost by benchmarks/cluster.py's model, the speed of one GPU measured where a row has it."""
    plan, pairs = recipe.plan, recipe.plan.config.global_batch_size
    measured = find_measured(rows, gpu, recipe)
    speed = measured or mfu * PEAK_TFLOPS[gpu] * 1e12
    cluster = Cluster(speed, WITHIN[gpu] * 1e9, BETWEEN[gpu] * 1e9, 1e-4)
    work = Work(plan.num_parameters, plan.flops, recipe.pair_tokens)
    imbalance = 1.0 if recipe.lengths is None else count_imbalance(recipe.lengths, gpus, pairs)
    rate, _ = predict(work, gpus, pairs, imbalance, cluster)
    return Cost(gpu, gpus, rate, recipe.tokens / rate / 3600, MEASURED if measured else MODEL)


def read_prices(given: Sequence[str] | None) -> dict[str, float]:
    """Price of an hour of one GPU by its name. Raises KinspanError for what is neither X nor GPU=X."""
    prices: dict[str, float] = {}
    for text in given or ():
        name, equals, number = text.rpartition("=")
        names = [name] if equals else list(WITHIN)
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 <= price < float("inf") or not set(names) <= set(WITHIN):
            raise KinspanError(f"--price {text}: must be a number, or GPU=NUMBER with GPU one of {', '.join(WITHIN)}")
        prices |= dict.fromkeys(names, price)
    return prices


def read_rows(path: str | None) -> list[dict[str, Any]]:
    """The rows that ``make gpu`` has written; none without a file."""
    if path is None:
        return []
    rows = read_object(Path(path), "give the summary.json that `make gpu` writes").get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "figures" in row for row in rows):
        raise KinspanError(f"--measured {path}: has no rows; give the summary.json that `make gpu` writes")
    return rows


def make_tables(
    recipes: Sequence[Recipe], prices: dict[str, float], mfu: float, rows: Sequence[dict[str, Any]]
) -> tuple[list[list[str]], list[list[str]]]:
    """What the recipes compute, and what that costs; the first row of each is its header."""
    counted = [["recipe", "updates", "pairs each", "tokens per pair", "tokens", "GFLOP per token", "parameters"]]
    costs = [["recipe", *(f"{gpus} x {gpu}" for gpu, gpus in MACHINES)]]
    for recipe in recipes:
        plan = recipe.plan
        counted.append(
            [
                recipe.name,
                f"{plan.steps:,}",
                f"{plan.config.global_batch_size:,}",
                f"{recipe.pair_tokens:.1f}",
                f"{recipe.tokens / 1e9:,.0f} B",
                f"{plan.flops / 1e9:.3f}",
                f"{plan.num_parameters / 1e6:.1f} M",
            ]
        )
        done = [work_out(recipe, gpu, gpus, mfu, rows) for gpu, gpus in MACHINES]
        costs.append([recipe.name, *(_format_cost(cost, prices) for cost in done)])
    return counted, costs


def _format_cost(cost: Cost, prices: dict[str, float]) -> str:
    price = f", {prices[cost.gpu] * cost.gpu_hours:,.0f}" if cost.gpu in prices else ""
    mark = "*" if cost.source == MEASURED else ""
    hours = f"{cost.hours:,.0f}" if cost.hours >= 20 else f"{cost.hours:.1f}"
    return f"{hours} h, {cost.gpu_hours:,.0f} GPU-h{price}{mark}"


@cache
def list_recipes() -> tuple[Path, ...]:
    """The pre-training recipes that are made for GPUs."""
    return tuple(path for path in sorted(RECIPES.glob("*.yaml")) if path.name.startswith(MADE_FOR_GPUS))


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", help=_common.CORPUS_HELP + " With RoBERTa's tokenizer.")
    parser.add_argument("--bert_corpus", help=_common.CORPUS_HELP + " With ELECTRA's (BERT's) tokenizer.")
    parser.add_argument("--price", nargs="+", metavar="X", help="Of an hour of one GPU: 2.5, or A100=1.5 H100=2.5.")
    parser.add_argument("--mfu", type=float, default=0.4, help="Share of the data sheet's FLOP/s: an assumption.")
    parser.add_argument("--measured", metavar="FILE", help="The summary.json of `make gpu`, for the speed of one GPU.")
    parser.add_argument("--page", action="store_true", help="Write docs/numbers.md as well.")
    args: argparse.Namespace = parser.parse_args()
    if not 0 < args.mfu <= 1:
        raise KinspanError(f"--mfu {args.mfu:g}: must be above 0 and at most 1")
    prices, rows = read_prices(args.price), read_rows(args.measured)
    recipes = [read_recipe(path, args.corpus, args.bert_corpus) for path in list_recipes()]
    counted, costs = make_tables(recipes, prices, args.mfu, rows)
    for table in (counted, costs):
        _common.print_table(table[0], table[1:])
        print()
    any_measured = any("*" in cell for row in costs for cell in row)
    print("* by a measured speed of one GPU" if any_measured else "all of it by the model; no GPU was measured")
    if args.page:
        blocks = {"counted": _as_markdown(counted), "costs": _as_markdown(costs), "settings": _describe(args, prices)}
        write_atomically(PAGE, fill_blocks(PAGE.read_text(encoding="utf-8"), blocks))
        print(f"written: {PAGE}")


def fill_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """The page with new texts between its lines ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, text in blocks.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"
    return page


def _as_markdown(table: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]])


def _describe(args: argparse.Namespace, prices: dict[str, float]) -> str:
    """What this run of the command rests on, as sentences."""
    shown = ", ".join(f"{price:g} for an hour of one {gpu}" for gpu, price in prices.items())
    lengths = (
        "counted on the corpora that were given" if args.corpus and args.bert_corpus else "full where no corpus was"
    )
    sentences = [
        f"Utilisation: {100 * args.mfu:g}% of {', '.join(f'{PEAK_TFLOPS[g]} ({g})' for g in WITHIN)} TFLOP/s.",
        f"Tokens per pair: {lengths}.",
        f"Price: {shown}." if shown else "No price was given.",
        "A star: by a measured speed of one GPU." if args.measured else "No speed was measured.",
    ]
    return " ".join(sentences)


if __name__ == "__main__":
    _common.run(main)
