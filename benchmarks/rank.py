"""Measures how fast candidates are scored: ``finetune.score`` against sentence-transformers' ``CrossEncoder.predict``.

The same model, and the same pairs of question and candidate in the order of the data set, from text to scores;
tokenising counts on both sides, loading the model does not. All ways take turns, some questions each, so that what
disturbs hits all of them, and the medians count. In fp32 the scores must agree. bf16 is left out where the processor
does not compute in it.

Bars, against predict in fp32 at its best batch size: 1.4 times in fp32, 2.5 times in bf16."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np

from benchmarks import _common
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.data.registry import SPECS, load_split

BATCH_SIZES = (32, 128)  # of predict: its default, and a larger one
OURS = "ours, fp32"
BARS = {OURS: 1.4, "ours, bf16": 2.5}
CLOSE = 1e-4  # most that two scores of one pair may differ in fp32

EPILOG = f"""example:
  python benchmarks/rank.py --data wikiqa=WikiQACorpus

{SPECS}"""


def ranker_of(name_or_dir: str, folder: Path) -> str:
    """Returns the folder of a sequence classifier with one logit, whose head is fresh where the model has none."""
    from finetune.ranking.ranker import load_own_tokenizer, load_ranker, save_ranker

    ranker = load_ranker(name_or_dir)
    save_ranker(
        ranker.classifier.config, load_own_tokenizer(name_or_dir), _common.MAX_LENGTH, ranker.state_dict(), folder
    )
    return str(folder)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--data", required=True, help="Data set, as below; its test split, unfiltered.")
    parser.add_argument("--model", default=default_model(), help="A ranker, or an encoder: its head is then fresh.")
    parser.add_argument("--rounds", type=int, default=5, help="Turns of each.")
    parser.add_argument("--questions", type=int, default=60, help="Questions of a turn.")
    args = parser.parse_args()
    data = load_split(args.data, "test")
    if data.num_questions < args.questions * args.rounds:
        raise KinspanError(f"--questions {args.questions} x --rounds {args.rounds}: there are {data.num_questions}")
    with tempfile.TemporaryDirectory() as folder:
        compare(ranker_of(args.model, Path(folder)), data, args.rounds, args.questions)


def list_ways(model: str, batch_sizes: Sequence[int] = BATCH_SIZES) -> dict[str, Callable[[AnswerSet], np.ndarray]]:
    """What scores the candidates of a set, by name; those in fp32 first. ``batch_sizes``: of predict"""
    import torch
    from sentence_transformers import CrossEncoder

    from finetune.ranking.encode import encode_pairs
    from finetune.ranking.ranker import load_own_tokenizer, load_ranker
    from finetune.ranking.score import score_pairs
    from pretrain.engine.device import choose_precision

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranker, tokenizer = load_ranker(model).to(device).eval(), load_own_tokenizer(model)

    def ours(turn: AnswerSet, precision: str) -> np.ndarray:
        return score_pairs(ranker, encode_pairs(turn, tokenizer, _common.MAX_LENGTH), device, precision=precision)

    def theirs(turn: AnswerSet, peer: CrossEncoder, size: int) -> np.ndarray:
        rows = zip(turn.question_of, turn.answers.to_pylist(), strict=True)
        pairs = [(turn.questions[question], answer) for question, answer in rows]
        return peer.predict(pairs, batch_size=size, activation_fn=torch.nn.Identity(), show_progress_bar=False)

    types = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if choose_precision("auto", 1) == "bf16" else {})
    ways: dict[str, Callable[[AnswerSet], np.ndarray]] = {}
    for name, dtype in types.items():
        peer = CrossEncoder(model, max_length=_common.MAX_LENGTH, model_kwargs={"dtype": dtype})
        ways[f"ours, {name}"] = partial(ours, precision=name)
        ways |= {f"predict, {name}, batches of {n}": partial(theirs, peer=peer, size=n) for n in batch_sizes}
    return ways


def measure(
    ways: dict[str, Callable[[AnswerSet], np.ndarray]], turns: Sequence[AnswerSet]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Of each way its pairs per second in every turn, and by how much its scores differ at most from ours in fp32."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    apart: dict[str, float] = dict.fromkeys(ways, 0.0)
    for way in ways.values():
        way(turns[0].take(np.arange(4)))
    for turn in turns:
        scores = {}
        for name, way in ways.items():
            began = time.perf_counter()
            scores[name] = way(turn)
            rates[name].append(turn.num_pairs / (time.perf_counter() - began))
            apart[name] = max(apart[name], float(np.abs(scores[OURS] - scores[name]).max()))
    return rates, apart


def compare(model: str, data: AnswerSet, rounds: int, questions: int) -> None:
    ways = list_ways(model)
    turns = [data.take(np.arange(k * questions, (k + 1) * questions)) for k in range(rounds)]
    rates, apart = measure(ways, turns)
    if (most := max(apart[name] for name in ways if "fp32" in name)) > CLOSE:
        raise KinspanError(f"the scores differ by up to {most}: the two do not do the same work")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    base = max((name for name in ways if name.startswith("predict, fp32")), key=medians.__getitem__)
    times = {name: statistics.median(np.divide(rates[name], rates[base]).tolist()) for name in ways}
    print(f"{data.name} test: {data.num_pairs:,} candidates, {rounds} turns of {questions} questions")
    rows = []
    for name, rate in medians.items():
        bar = f"{BARS[name]:.1f}" if name in BARS else ""
        rows.append((name, f"{rate:,.0f}", f"{times[name]:.2f}", bar, f"{apart[name]:.0e}"))
    _common.print_table(("", "pairs/s", f"x {base}", "bar", "scores differ by"), rows)
    _common.report("rank", {**medians, **{f"times {name}": ratio for name, ratio in times.items()}})


if __name__ == "__main__":
    _common.run(main)
