"""How well scores rank candidate answers, per question: MAP, MRR, P@1, nDCG@10 and recall, as trec_eval computes them.

Conventions of trec_eval 9 (form_res_rels.c, m_map.c, m_recip_rank.c, m_P.c, m_ndcg_cut.c), to which pytrec_eval binds:
    - scores are compared as 32-bit floats: two that differ by less are a tie
    - ties are broken by the candidate's id, the last in byte order first
    - a candidate that was not judged, or was judged below 0, is no answer
    - nDCG's gain is the relevance itself, its discount is log2(1 + rank), its ideal ranks all judged candidates
    - a question without an answer scores 0
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.errors import KinspanError
from finetune.data.answers import AnswerSet

MAP, MRR, P_1, NDCG_10 = METRICS = ("map", "mrr", "p@1", "ndcg@10")
MRR_10 = "mrr@10"
CUTS = (1, 5, 10)
RECALLS = tuple(f"r@{cut}" for cut in CUTS)  # the share of the right answers that are ranked this high
RETRIEVAL_METRICS = (MRR, *RECALLS)
SEARCH_METRICS = (MRR_10, RECALLS[-1], MAP)  # of a search over all paragraphs
TITLES = {MAP: "MAP", MRR: "MRR", P_1: "P@1", NDCG_10: "nDCG@10"}
TITLES |= {name: name.upper() for name in (MRR_10, *RECALLS)}
NDCG_CUT = 10

Figures = dict[str, np.ndarray]  # each metric's value for every question, [Q] float64
Qrels = Mapping[str, Mapping[str, int]]  # relevance by question id and candidate id
Run = Mapping[str, Mapping[str, float]]  # score by question id and candidate id


def compute_question_metrics(
    data: AnswerSet, scores: np.ndarray, metrics: Sequence[str] = METRICS, found: np.ndarray | None = None
) -> Figures:
    """Returns these metrics of every question of ``data``; ``scores`` ``[N]`` has a score for every candidate.

    found: ``[N]`` bool, False for candidates that a search did not find, so that they have no rank
    """
    question, gains = data.question_of, data.labels.astype(np.int64)
    order = rank_rows(data, scores)
    order = order if found is None else order[found[order]]
    return _compute_figures(question[order], gains[order], question, gains, data.num_questions, metrics)


def compute_run_metrics(qrels: Qrels, run: Run, metrics: Sequence[str] = METRICS) -> Figures:
    """Returns these metrics of every question of ``qrels``, in its order; 0 if the run lacks it (``trec_eval -c``).

    Questions of the run that are not in ``qrels`` are ignored. Raises as ``compute_question_metrics`` does.
    """
    ranked = rank_run({name: run.get(name, {}) for name in qrels})
    question = np.repeat(np.arange(len(qrels)), [len(ids) for ids in ranked.values()])
    gains = np.array([max(qrels[q].get(c, 0), 0) for q, ids in ranked.items() for c in ids], dtype=np.int64)
    judged = np.repeat(np.arange(len(qrels)), [len(candidates) for candidates in qrels.values()])
    judged_gains = np.array([max(r, 0) for relevance in qrels.values() for r in relevance.values()], dtype=np.int64)
    return _compute_figures(question, gains, judged, judged_gains, len(qrels), metrics)


def rank_run(run: Run) -> dict[str, list[str]]:
    """Returns the candidates of each question best first, as trec_eval ranks them. Raises as ``rank_rows`` does."""
    rows = [(question, candidate) for question, candidates in run.items() for candidate in candidates]
    sizes = [len(candidates) for candidates in run.values()]
    scores = np.array([score for candidates in run.values() for score in candidates.values()], dtype=np.float64)
    question = np.repeat(np.arange(len(run)), sizes)
    ids = pa.array([candidate for _, candidate in rows], pa.large_string())
    order = _sort_rows(question, _round_scores(scores, lambda row: rows[row]), ids).tolist()
    ranked = iter([rows[row][1] for row in order])
    return {name: list(islice(ranked, size)) for name, size in zip(run, sizes, strict=True)}


def compute_means(figures: Figures) -> dict[str, float]:
    """Returns the mean of each metric over the questions."""
    return {metric: float(values.mean()) for metric, values in figures.items()}


def rank_rows(data: AnswerSet, scores: np.ndarray) -> np.ndarray:
    """Returns the rows of ``data``, ``[N]``, by question and falling score; ties are broken as trec_eval does."""
    question = data.question_of
    values = _round_scores(scores, lambda row: (data.question_ids[question[row]], data.answer_ids[row].as_py()))
    return _sort_rows(question, values, data.answer_ids)


def _round_scores(scores: np.ndarray, names: Callable[[int], tuple[str, str]]) -> np.ndarray:
    """Returns the scores in 32 bits, as trec_eval compares them.

    names: returns the ids of a row's question and candidate, for the error message
    """
    with np.errstate(over="ignore"):
        values = scores.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        question, candidate = names(int(wrong[0]))
        raise KinspanError(
            f"question {question}, candidate {candidate}: the score {float(scores[wrong[0]])!r} is not a finite 32-bit "
            f"number ({len(wrong):,} such in all), which cannot be ranked"
        )
    return values


def _sort_rows(question: np.ndarray, values: np.ndarray, ids: pa.Array) -> np.ndarray:
    """Returns the rows sorted by question, falling value and falling id; UTF-8 sorts by bytes as strcmp does."""
    ranks = pc.rank(ids, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return np.lexsort((-ranks, -values, question))


def _compute_figures(
    question: np.ndarray,
    gains: np.ndarray,
    judged: np.ndarray,
    judged_gains: np.ndarray,
    num_questions: int,
    metrics: Sequence[str],
) -> Figures:
    """Computes the metrics from gains in the order of the ranking.

    question, gains:      ``[n]`` of the ranked candidates, best first; questions ascend
    judged, judged_gains: ``[m]`` of all judged candidates, in any order within ascending questions
    """

    def sum_by_question(weights: np.ndarray) -> np.ndarray:
        return np.bincount(question, weights=weights, minlength=num_questions)

    rank, hit = _compute_ranks(question, num_questions), gains > 0
    before = np.append(0, np.cumsum(hit))[np.arange(len(rank)) - rank + 1]  # number of hits of earlier questions
    hits_so_far = np.cumsum(hit) - before
    first = hit & (hits_so_far == 1)
    answers = np.bincount(judged, weights=judged_gains > 0, minlength=num_questions)
    ideal_order = np.lexsort((-judged_gains, judged))
    ideal = _compute_dcg(judged[ideal_order], judged_gains[ideal_order], num_questions)
    recalls = [_divide(sum_by_question(hit & (rank <= cut)), answers) for cut in CUTS]
    figures = {
        MAP: _divide(sum_by_question(hit * hits_so_far / rank), answers),
        MRR: sum_by_question(first / rank),
        MRR_10: sum_by_question((first & (rank <= CUTS[-1])) / rank),
        P_1: sum_by_question(hit & (rank == 1)),
        NDCG_10: _divide(_compute_dcg(question, gains, num_questions), ideal),
        **dict(zip(RECALLS, recalls, strict=True)),
    }
    return {name: figures[name] for name in metrics}


def _compute_ranks(question: np.ndarray, num_questions: int) -> np.ndarray:
    """Returns the rank of each row within its question, from 1."""
    sizes = np.bincount(question, minlength=num_questions)
    return np.arange(len(question)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1


def _compute_dcg(question: np.ndarray, gains: np.ndarray, num_questions: int) -> np.ndarray:
    """Returns the discounted cumulative gain of each question's first 10, ``[Q]`` (Järvelin and Kekäläinen, 2002)."""
    rank = _compute_ranks(question, num_questions)
    weights = np.where(rank <= NDCG_CUT, gains / np.log2(1 + rank), 0)
    return np.bincount(question, weights=weights, minlength=num_questions)


def _divide(value: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Returns the quotients; 0 where the count is 0."""
    return np.divide(value, count, out=np.zeros(len(value)), where=count > 0)
