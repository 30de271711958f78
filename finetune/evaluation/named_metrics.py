"""Metrics by the names that ir_measures knows, such as MRR@10, P(rel=2)@5 and R@100.

Those that ``metrics`` computes are computed there, equal to trec_eval's; ir_measures computes all others. It gets
rankings whose ties are already broken as trec_eval does, because each of the tools that it calls has its own rule.
"""

import re
from collections.abc import Collection, Sequence

import numpy as np

from data_pipeline.core.errors import KinspanError, quote_error
from finetune.data.answers import AnswerSet

from .metrics import (
    MAP,
    MRR,
    NDCG_10,
    P_1,
    RECALLS,
    RETRIEVAL_METRICS,
    TITLES,
    Figures,
    Qrels,
    Run,
    compute_question_metrics,
    compute_run_metrics,
    rank_run,
)

OURS = {"AP": MAP, "RR": MRR, "P@1": P_1, "nDCG@10": NDCG_10, **{name.upper(): name for name in RECALLS}}
_SEPARATOR = re.compile(r"[\s,]+(?![^(]*\))")  # between metrics, not between parameters in brackets


def parse_metrics(given: Sequence[str]) -> list[str]:
    """Returns the metrics that the values of ``--metrics`` name, one or several each; OURS by our own names."""
    metrics = []
    for name in (name for text in given for name in _SEPARATOR.split(text.strip()) if name):
        import ir_measures  # takes a second

        try:
            measure = ir_measures.parse_measure(name)
            measure.validate_params()
        except (NameError, ValueError, AssertionError, TypeError) as error:
            raise KinspanError(f"--metrics {name}: not a metric of ir_measures ({quote_error(error)})") from error
        if measure.params.get("cutoff", 1) < 1:
            raise KinspanError(f"--metrics {name}: the number after @ must be 1 or more")
        if isinstance(measure.aggregator(), ir_measures.SumAgg):
            raise KinspanError(f"--metrics {name}: it counts over all questions, and has no mean over them")
        if not ir_measures.DefaultPipeline.supports(measure):
            raise KinspanError(f"--metrics {name}: none of the installed tools of ir_measures computes it")
        metrics.append(OURS.get(str(measure), name))
    return list(dict.fromkeys(metrics))


def measure_run(qrels: Qrels, run: Run, metrics: Sequence[str]) -> Figures:
    """Returns these metrics of every question of ``qrels``, in its order; see ``compute_run_metrics``."""
    figures = compute_run_metrics(qrels, run, [name for name in metrics if name in TITLES])
    return {name: figures[name] if name in figures else _compute_by_library(name, qrels, run) for name in metrics}


def measure_answers(data: AnswerSet, scores: np.ndarray, metrics: Sequence[str]) -> Figures:
    """Returns these metrics of every question of ``data``; ``scores`` ``[N]`` has a score for every candidate."""
    if all(name in TITLES for name in metrics):
        return compute_question_metrics(data, scores, metrics)
    slices, ids = list(data.question_slices()), data.answer_ids.to_pylist()
    qrels, run = (
        {name: dict(zip(ids[r], column[r], strict=True)) for name, r in zip(data.question_ids, slices, strict=True)}
        for column in (data.labels.tolist(), scores.astype(np.float64).tolist())
    )
    return measure_run(qrels, run, metrics)


def measure_retrieval(
    ranked: Sequence[Sequence[str]], right: Sequence[Collection[str]], metrics: Sequence[str] = RETRIEVAL_METRICS
) -> Figures:
    """Returns these metrics of every question, ``[Q]``, from the answer ids that a search returned, best first, and the
    right ones; a question without a right answer counts 0."""
    run = {str(q): {name: -float(rank) for rank, name in enumerate(ids)} for q, ids in enumerate(ranked)}
    return compute_run_metrics({str(q): dict.fromkeys(ids, 1) for q, ids in enumerate(right)}, run, metrics)


def _compute_by_library(name: str, qrels: Qrels, run: Run) -> np.ndarray:
    """Returns ir_measures' value of each question, ``[Q]``. Raises KinspanError if it fails or leaves a question out.

    Questions are numbered, because all of its tools accept numbers as ids. A relevance below -1 would crash trec_eval.
    """
    import ir_measures

    ranked = rank_run({question: run.get(question, {}) for question in qrels})
    scores = {
        str(number): {candidate: float(len(ids) - rank) for rank, candidate in enumerate(ids)}
        for number, ids in enumerate(ranked.values())
        if ids
    }
    judged = {
        str(number): {candidate: max(relevance, -1) for candidate, relevance in candidates.items()}
        for number, candidates in enumerate(qrels.values())
    }
    try:
        measure = ir_measures.parse_measure(name)
        values = {row.query_id: row.value for row in ir_measures.iter_calc([measure], judged, scores)}
        return np.array([values[number] for number in judged], dtype=np.float64)
    except Exception as error:  # each of its tools raises its own errors
        raise KinspanError(f"--metrics {name}: ir_measures cannot compute it: {quote_error(error)}") from error
