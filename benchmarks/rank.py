"""Measures how fast candidates are scored: ``finetune.score`` against sentence-transformers' ``CrossEncoder.predict``.

The same model, in fp32, and the same pairs of question and candidate in the order of the data set, from text to scores;
tokenising counts on both sides, loading the model does not. The two take turns, some questions each, and the medians
count, so that what disturbs hits both. Their scores must agree.

Bars: at least as fast, aiming at twice."""

import statistics
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np

from benchmarks import _common
from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.data.registry import SPECS, load_split
from pretrain.modeling.default_model import default_model

BATCH_SIZES = (32, 128)  # of predict: its default, and a larger one
HALF = "ours, bf16"  # not the same work: rounded, as --precision bf16 asks
CLOSE = 1e-4  # most that two scores of one pair may differ

EPILOG = f"""example:
  python benchmarks/rank.py --data wikiqa=WikiQACorpus

{SPECS}"""


def ranker_of(name_or_dir: str, folder: Path) -> str:
    """A sequence classifier with one logit: the folder itself, or an encoder with a fresh head."""
    from finetune.ranking.ranker import load_own_tokenizer, load_ranker, save_ranker

    ranker, notes = load_ranker(name_or_dir)
    if not notes:
        return name_or_dir
    save_ranker(ranker.classifier.config, load_own_tokenizer(name_or_dir), ranker.state_dict(), folder)
    return str(folder)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--data", required=True, help="Data set, as below; its test split, unfiltered.")
    parser.add_argument("--model", default=default_model(), help="A ranker, or an encoder: its head is then fresh.")
    parser.add_argument("--rounds", type=int, default=5, help="Turns of each.")
    parser.add_argument("--questions", type=int, default=60, help="Questions of a turn.")
    args = parser.parse_args()
    data, _ = load_split(args.data, "test")
    if data.num_questions < args.questions * args.rounds:
        raise KinspanError(f"--questions {args.questions} x --rounds {args.rounds}: there are {data.num_questions}")
    with tempfile.TemporaryDirectory() as folder:
        compare(ranker_of(args.model, Path(folder)), data, args.rounds, args.questions)


def compare(model: str, data: AnswerSet, rounds: int, questions: int) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    from finetune.ranking.encode import encode_pairs
    from finetune.ranking.ranker import load_own_tokenizer, load_ranker
    from finetune.ranking.score import score_pairs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranker, tokenizer = load_ranker(model)[0].to(device).eval(), load_own_tokenizer(model)
    peer = CrossEncoder(model, max_length=_common.MAX_LENGTH, model_kwargs={"dtype": torch.float32})

    def ours(turn: AnswerSet, precision: str = "fp32") -> np.ndarray:
        return score_pairs(ranker, encode_pairs(turn, tokenizer, _common.MAX_LENGTH), device, precision=precision)

    def theirs(turn: AnswerSet, size: int) -> np.ndarray:
        rows = zip(turn.question_of, turn.answers.to_pylist(), strict=True)
        pairs = [(turn.questions[question], answer) for question, answer in rows]
        return peer.predict(pairs, batch_size=size, activation_fn=torch.nn.Identity(), show_progress_bar=False)

    ways = {"ours": ours} | {f"predict, batches of {n}": lambda turn, n=n: theirs(turn, n) for n in BATCH_SIZES}
    ways[HALF] = lambda turn: ours(turn, "bf16")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    apart = rounded = 0.0
    warm = data.take(np.arange(4))
    for way in ways.values():
        way(warm)
    for number in range(rounds):
        turn = data.take(np.arange(number * questions, (number + 1) * questions))
        scores = []
        for name, way in ways.items():
            began = time.perf_counter()
            scores.append(way(turn))
            rates[name].append(turn.num_pairs / (time.perf_counter() - began))
        apart = max(apart, *(float(np.abs(scores[0] - other).max()) for other in scores[1:-1]))
        rounded = max(rounded, float(np.abs(scores[0] - scores[-1]).max()))
    if apart > CLOSE:
        raise KinspanError(f"the scores differ by up to {apart}: the two do not do the same work")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {name: statistics.median(np.divide(rates["ours"], rates[name]).tolist()) for name in ways}
    rows = [(name, f"{rate:,.0f}", "" if name == "ours" else f"{ratios[name]:.2f}") for name, rate in medians.items()]
    print(
        f"{data.name} test: {data.num_pairs:,} candidates, {rounds} turns of {questions} questions; {device.type}, fp32"
    )
    _common.print_table(("", "pairs/s", "ours is x"), rows)
    print(f"scores agree within {apart:.1e}; those of bf16 within {rounded:.1e}")
    _common.report("rank", {**medians, **{f"times {n}": r for n, r in ratios.items() if n != "ours"}})


if __name__ == "__main__":
    _common.run(main)
