"""How well the ONNX graphs of a release rank the candidates of a data set, beside the model itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.files import read_object
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN, filter_questions
from finetune.data.registry import load_split
from finetune.evaluation.metrics import METRICS, TITLES, compute_means, compute_question_metrics
from pretrain.modeling.scorer import PackedPairs
from pretrain.release.folder import FACTS

from .encode import encode_pairs
from .ranker import load_own_tokenizer
from .score import BATCH_TOKENS, score_answers, unpack

SPLIT = "test"


def measure_graphs(folder: Path, spec: str) -> Callable[[Mapping[str, Path]], str]:
    """Returns a function that measures graphs on the clean test set ``spec``, and returns a table in Markdown.

    The set is read at once. Raises KinspanError where there is no such set.
    """
    max_length = int(read_object(folder / FACTS, "release it again")["max_length"])
    whole, _ = load_split(spec, SPLIT)
    data = filter_questions(whole, CLEAN)

    def measure(graphs: Mapping[str, Path]) -> str:
        tokenizer = load_own_tokenizer(str(folder))
        scores = {"model": score_answers(str(folder), data, max_length)}
        scores |= {f"ONNX, {name}": score_graph(path, data, tokenizer, max_length) for name, path in graphs.items()}
        return format_table(data, scores)

    return measure


def score_graph(path: Path, data: AnswerSet, tokenizer: Any, max_length: int) -> np.ndarray:
    """Scores ``[N]`` of the candidates by an ONNX graph, on the processor. Pairs of like length go together."""
    import onnxruntime  # an extra

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    encoded = encode_pairs(data, tokenizer, max_length)
    pairs = unpack(encoded)
    scores = np.empty(len(encoded.lengths))
    for rows in encoded.by_length(BATCH_TOKENS["cpu"]):
        batch = pad(pairs, rows, tokenizer.pad_token_id)
        scores[rows] = session.run(None, {i.name: batch[i.name] for i in session.get_inputs()})[0][:, 0]
    return scores


def pad(pairs: PackedPairs, rows: np.ndarray, pad_id: int) -> dict[str, np.ndarray]:
    """The pairs ``rows`` as arrays ``[len(rows), longest]`` of int64."""
    lengths = np.diff(pairs.starts)[rows]
    places = np.arange(lengths.max())
    mask = places < lengths[:, None]
    at = (pairs.starts[rows][:, None] + places)[mask]
    ids, types = np.full(mask.shape, pad_id, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
    ids[mask], types[mask] = pairs.ids[at], pairs.types[at]
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}


def format_table(data: AnswerSet, scores: Mapping[str, np.ndarray]) -> str:
    """The metrics of each system, and by how much its scores differ from the first one's."""
    first = next(iter(scores.values()))
    lines = [
        f"| {data.name} {data.split}, {CLEAN} ({data.num_questions:,} questions) | "
        f"{' | '.join(TITLES[metric] for metric in METRICS)} | largest difference of a score |",
        "|---" * (len(METRICS) + 2) + "|",
    ]
    for name, own in scores.items():
        means = compute_means(compute_question_metrics(data, own))
        cells = " | ".join(f"{means[metric]:.4f}" for metric in METRICS)
        lines.append(f"| {name} | {cells} | {np.abs(own - first).max():.2g} |")
    return "\n".join(lines)
