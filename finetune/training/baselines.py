"""The baselines of a fine-tuned ranker: BM25, and the model that it started from."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.comparison import START
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.model import score_answers
from pretrain.engine.ranks import broadcast_from_rank_0
from pretrain.modeling.pair_model import holds_no_weights

from .config import FinetuneConfig, choose_metrics, list_metrics
from .fingerprints import fingerprint_answers, fingerprint_ids, fingerprint_model

log = logging.getLogger(__name__)

BASELINES = "baselines.json"


def measure_baselines(config: FinetuneConfig, data: AnswerSet, folder: Path) -> dict[str, dict[str, float]]:
    """Returns the mean metrics of each baseline on a split; measured once, and kept in ``folder``.

    The start ranks by its own head where it has one, by the similarity of its embeddings where it is an embedding
    model, and else not at all. Run by every rank.
    """
    model, path = str(config.model), folder / BASELINES
    of = [fingerprint_model(model), fingerprint_answers(data), fingerprint_ids(data), config.max_length]

    def read() -> dict[str, Any]:
        with suppress(KinspanError):
            return read_object(path, "")
        return {}

    log.info("for comparison, %s and %s on %s", BM25, START, data.split)
    known = broadcast_from_rank_0(read)
    # A start that could not be measured, offline say, is tried again
    if known.get("of") != of or known["notes"] or list(known["means"][BM25]) != list(list_metrics(config)):
        known = {"of": of, **_measure(config, data)}
        broadcast_from_rank_0(lambda: write_atomically(path, json.dumps(known, indent=1) + "\n"))
    for note in known["notes"]:
        log.warning(note)
    return known["means"]


def _measure(config: FinetuneConfig, data: AnswerSet) -> dict[str, Any]:
    model, metrics = str(config.model), list_metrics(config)
    scores, notes = {BM25: score_bm25(data)}, []
    try:
        if not holds_no_weights(model):
            scores[START] = score_answers(model, data, None if is_bi_encoder(model) else config.max_length)
    except KinspanError as error:
        notes.append(f"{START} has no row: {error}")
    means = {name: compute_means(compute_question_metrics(data, values, metrics)) for name, values in scores.items()}
    return {"means": means, "notes": notes}


def log_better_baselines(results: Mapping[str, Any]) -> None:
    """Warns of each baseline that the mean of the seeds is below. ``results``: those of results.json, or empty."""
    for split, baselines in results.get("baselines", {}).items():
        metric = choose_metrics(results["settings"]["loss"])[0]
        mean = results[split][metric]["mean"]
        for name, figures in baselines.items():
            if mean < figures[metric]:
                log.warning("%s %.4f on %s is below %.4f of %s", metric, mean, split, figures[metric], name)
