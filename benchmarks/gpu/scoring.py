"""How fast candidates of WikiQA's test set are scored, by the product and by ``CrossEncoder.predict``."""

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from benchmarks.rank import CLOSE, ranker_of
from finetune.data.answers import AnswerSet
from finetune.data.registry import load_split
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs

from .materials import KIT_MODELS, Bench, Row
from .ours import ON_GPU

MAX_LENGTH = 128
BATCHES = (32, 128, 512)  # of predict
ROUNDS = 3
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def compare_scoring(bench: Bench) -> Iterator[Row]:
    """From text to scores in fp32 and bf16, tokenising included, with fresh heads; the two must agree in fp32."""
    if not bench.wikiqa.is_dir():
        yield Row("WikiQA", {"": "the kit holds no WikiQA"})
        return
    data, _ = load_split(f"wikiqa={bench.wikiqa}", "test")
    if bench.quick:
        data = data.take(np.arange(4))
    for name in ("roberta-base", "minilm-l6"):
        folder = ranker_of(bench.model(name), bench.scratch / f"ranker-{name}")
        scores: dict[str, np.ndarray] = {}
        rates: dict[str, float] = {}
        for way, score in _list_ways(folder, BATCHES[:1] if bench.quick else BATCHES).items():
            rates[way], scores[way] = _measure(score, data, 1 if bench.quick else ROUNDS)
        best = {
            half: max(v for way, v in rates.items() if way.startswith(f"predict {half}")) for half in ("fp32", "bf16")
        }
        apart = float(np.abs(scores["ours fp32"] - scores["predict fp32, batches of 32"]).max())
        figures = {f"{way}, pairs/s": rate for way, rate in rates.items()}
        figures["fp32 by predict at its best"] = rates["ours fp32"] / best["fp32"]
        figures["bf16 by fp32 predict at its best"] = rates["ours bf16"] / best["fp32"]
        figures["bf16 by bf16 predict at its best"] = rates["ours bf16"] / best["bf16"]
        figures["scores apart, fp32"] = apart
        yield Row(f"{KIT_MODELS[name].title}, {data.num_pairs} pairs", figures, apart <= CLOSE)


def _list_ways(folder: str, batches: tuple[int, ...]) -> dict[str, Callable[[AnswerSet], np.ndarray]]:
    ranker, tokenizer = load_ranker(folder)[0].to(DEVICE).eval(), load_own_tokenizer(folder)
    ways: dict[str, Callable[[AnswerSet], np.ndarray]] = {}
    for half, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        peer = CrossEncoder(folder, max_length=MAX_LENGTH, device=DEVICE.type, model_kwargs={"dtype": dtype})

        def ours(data: AnswerSet, half: str = half) -> np.ndarray:
            return score_pairs(ranker, encode_pairs(data, tokenizer, MAX_LENGTH), DEVICE, precision=half)

        def theirs(data: AnswerSet, peer: CrossEncoder = peer, size: int = 0) -> np.ndarray:
            rows = zip(data.question_of, data.answers.to_pylist(), strict=True)
            pairs = [(data.questions[question], answer) for question, answer in rows]
            return peer.predict(pairs, batch_size=size, activation_fn=torch.nn.Identity(), show_progress_bar=False)

        ways[f"ours {half}"] = ours
        for size in batches:
            ways[f"predict {half}, batches of {size}"] = lambda data, size=size, theirs=theirs: theirs(data, size=size)
    return ways


def _measure(score: Callable[[AnswerSet], np.ndarray], data: AnswerSet, rounds: int) -> tuple[float, np.ndarray]:
    """Pairs per second, the median of ``rounds`` after a small one that warms up, and the scores."""
    score(data.take(np.arange(4)))
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        scores = score(data)
        seconds.append(time.perf_counter() - began)
    return data.num_pairs / statistics.median(seconds), scores
