"""What a fine-tuned ranker is compared with: BM25, and the model that it started from."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.comparison import BI_ENCODER, CROSS_ENCODER, START, warn_of_baselines
from finetune.evaluation.metrics import METRICS, RETRIEVAL_METRICS, compute_means, compute_question_metrics
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.model import score_answers
from pretrain.engine.ranks import broadcast_from_rank_0
from pretrain.modeling.pair_model import holds_no_weights

from .config import CONTRASTIVE, FinetuneConfig, list_metrics
from .fingerprints import fingerprint_answers, fingerprint_ids, fingerprint_model

BASELINES = "baselines.json"


def measure_baselines(
    config: FinetuneConfig, data: AnswerSet, folder: Path, say: Callable[[str], None] = print
) -> dict[str, dict[str, float]]:
    """The mean metrics of each baseline on a split; measured once, and kept in ``folder``.

    The start ranks by its own head where it has one, by the similarity of its embeddings where it is an embedding
    model, and else not at all. Run by every rank.
    """
    model, path = str(config.model), folder / BASELINES
    of = [fingerprint_model(model), fingerprint_answers(data), fingerprint_ids(data), config.max_length]

    def read() -> dict[str, Any]:
        with suppress(KinspanError):
            return read_object(path, "")
        return {}

    say(f"for comparison, {BM25} and {START} on {data.split}")
    known = broadcast_from_rank_0(read)
    # A start that could not be measured, offline say, is tried again
    if known.get("of") != of or known["notes"] or list(known["means"][BM25]) != list(list_metrics(config)):
        known = {"of": of, **_measure(config, data)}
        broadcast_from_rank_0(lambda: write_atomically(path, json.dumps(known, indent=1) + "\n"))
    for note in known["notes"]:
        say(note)
    return known["means"]


def _measure(config: FinetuneConfig, data: AnswerSet) -> dict[str, Any]:
    model, metrics = str(config.model), list_metrics(config)
    scores, notes = {BM25: score_bm25(data)}, []
    try:
        if not holds_no_weights(model):
            scores[START] = score_answers(model, data, None if is_bi_encoder(model) else config.max_length)
    except KinspanError as error:
        notes.append(f"{START} has no row: {error}")
    means = {name: compute_means(compute_question_metrics(data, own, metrics)) for name, own in scores.items()}
    return {"means": means, "notes": notes}


def warn_of_results(results: Mapping[str, Any]) -> list[str]:
    """A line for each measured baseline that the mean of the seeds is below. ``results``: what results.json holds, or
    nothing."""
    lines = []
    for split, baselines in results.get("baselines", {}).items():
        compares = results["settings"]["loss"] == CONTRASTIVE
        metric, advice = (RETRIEVAL_METRICS[0], BI_ENCODER) if compares else (METRICS[0], CROSS_ENCODER)
        own = {name: figures[metric] for name, figures in baselines.items()}
        lines += warn_of_baselines(split, metric, results[split][metric]["mean"], own, advice)
    return lines
