"""Search in two stages: many candidates by vectors or words, of which a cross-encoder then ranks the best."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from finetune.ranking.bi_encoder import QUERY
from finetune.ranking.embedder import Embedder

from .building import check_model, find_model
from .index import Index, RankedRows
from .questions import BI_ENCODER, BLEND, BM25, CANDIDATES, CROSS_ENCODER, FUSION, RERANKED, clean_question
from .rerank import ReRanker

FUSION_RANK = 60  # added to each rank (Cormack et al., 2009)


@dataclass(frozen=True)
class Hit:
    """An answer that was found.

    question: that it came from; "" where it is not known
    title:    of the document that it is from; "" where there is none
    score:    that it was ranked by: of the cross-encoder or the blend, or else of the first stage
    scores:   of each stage that gave it one, by BI_ENCODER, BM25, FUSION, CROSS_ENCODER and BLEND
    """

    id: str
    text: str
    question: str
    url: str
    title: str
    score: float
    scores: dict[str, float]


@dataclass
class Answered:
    """What was found for a batch of questions.

    hits:    of each question, the best first
    timings: milliseconds of each stage for the whole batch: "encode", "nearest", "words", "rerank", "read" and "total"
    """

    hits: list[list[Hit]]
    timings: dict[str, float] = field(default_factory=dict)


class Searcher:
    """An index, its bi-encoder, and a cross-encoder where there is one, ready to answer.

    index:         folder of an index
    cross_encoder: a release, a ranker or any sequence classifier of one or two labels
    model:         the bi-encoder, where its folder has moved since the index was built
    precision:     of the cross-encoder
    max_length:    most tokens of a question with an answer, for the cross-encoder; None: its own
    blend:         what the cross-encoder reads is ranked by the reciprocal ranks of its order and of the first stage's,
                   and not by its scores alone: a weak cross-encoder then does less harm, and may add what it knows

    Raises KinspanError for what is missing or damaged, or where the model is not the one of the index.
    """

    def __init__(
        self,
        index: str | Path,
        cross_encoder: str | None = None,
        model: str | None = None,
        precision: str = "fp32",
        max_length: int | None = None,
        blend: bool = False,
    ) -> None:
        if blend and not cross_encoder:
            raise KinspanError("--blend needs --cross_encoder, whose order it fuses with the first stage's")
        self.index = Index(index)
        place = model or find_model(self.index.manifest, Path(index))
        check_model(self.index.manifest, place, Path(index))
        self.embedder = Embedder(place, self.index.manifest.settings["max_length"])
        self.cross_encoder = ReRanker(cross_encoder, max_length, precision) if cross_encoder else None
        self.blend = blend
        self._cut = 0  # questions of which the bi-encoder read the beginning alone

    def search(
        self,
        questions: Sequence[str],
        k: int = 3,
        rerank_k: int = RERANKED,
        first_stage: str = BI_ENCODER,
        candidates: int = CANDIDATES,
        exact: bool = False,
    ) -> Answered:
        """Answers a batch of questions; each gets at most k answers, fewer where fewer are found.

        rerank_k:    the cross-encoder ranks so many of the candidates, and the others follow in their order; 0 leaves
                     it out
        first_stage: what finds the candidates: BI_ENCODER, BM25, or FUSION, which is reciprocal rank fusion of both
                     (Cormack, Clarke and Büttcher, 2009, "Reciprocal Rank Fusion outperforms Condorcet and individual
                     Rank Learning Methods")
        candidates:  of the first stage; at least as many as are asked for or ranked again
        exact:       all vectors are compared, also where the index has an approximate one

        Raises KinspanError for an empty question.
        """
        asked = [clean_question(question) for question in questions]
        candidates = max(candidates, k, rerank_k if self.cross_encoder else 0)
        answered, began = Answered([[] for _ in asked]), time.perf_counter()
        if not asked:
            return answered
        found: dict[str, list[RankedRows]] = {}
        if first_stage in (BI_ENCODER, FUSION):
            with _timed(answered, "encode"):
                vectors = self.embedder.embed_queries(asked)
                self._cut += self.embedder.count_cut(asked, QUERY)
            with _timed(answered, "nearest"):
                found[BI_ENCODER] = self.index.find_nearest(vectors, candidates, exact)
        if first_stage in (BM25, FUSION):
            with _timed(answered, "words"):
                found[BM25] = [self.index.find_words(question, candidates) for question in asked]
        if first_stage == FUSION:
            found[FUSION] = [fuse(lists, candidates) for lists in zip(found[BI_ENCODER], found[BM25], strict=True)]
        scores = [
            {stage: dict(zip(*map(np.ndarray.tolist, lists[number]), strict=True)) for stage, lists in found.items()}
            for number in range(len(asked))
        ]
        ranked = [lists[0].tolist() for lists in found[first_stage]]
        if self.cross_encoder and rerank_k:
            with _timed(answered, "rerank"):
                ranked = self._rerank(asked, ranked, scores, rerank_k)
        with _timed(answered, "read"):
            answered.hits = [
                [self._make_hit(row, of_stage, first_stage) for row in rows[:k]]
                for rows, of_stage in zip(ranked, scores, strict=True)
            ]
        answered.timings["total"] = 1000 * (time.perf_counter() - began)
        return answered

    def describe_cut(self) -> list[str]:
        """Lines that say how many questions the bi-encoder cut so far, and how many pairs the cross-encoder did."""
        lines = self.cross_encoder.describe_cut() if self.cross_encoder else []
        if self._cut:
            limit = f"questions longer than {self.embedder.max_length} tokens: {self._cut:,}"
            lines.insert(0, f"{self.embedder.name}: {limit}; it reads how they begin, BM25 all of them")
        return lines

    def _rerank(
        self, questions: Sequence[str], ranked: list[list[int]], scores: list[dict[str, dict[int, float]]], count: int
    ) -> list[list[int]]:
        """The rows with the first ``count`` in their new order; what it follows from is added to ``scores``."""
        assert self.cross_encoder
        first = [rows[:count] for rows in ranked]
        texts = [[self.index.answer(row).text for row in rows] for rows in first]
        given = self.cross_encoder.score(questions, texts)
        out = []
        for rows, head, own, of_stage in zip(ranked, first, given, scores, strict=True):
            of_stage[CROSS_ENCODER] = dict(zip(head, own.tolist(), strict=True))
            order = np.array(head, dtype=np.int64)[np.argsort(-own, kind="stable")]
            if self.blend:
                order, sums = fuse([(np.array(head, dtype=np.int64), own), (order, own)], len(head))
                of_stage[BLEND] = dict(zip(order.tolist(), sums.tolist(), strict=True))
            out.append(order.tolist() + rows[count:])
        return out

    def _make_hit(self, row: int, of_stage: dict[str, dict[int, float]], first_stage: str) -> Hit:
        answer = self.index.answer(row)
        own = {stage: float(scores[row]) for stage, scores in of_stage.items() if row in scores}
        return Hit(*answer, score=own.get(BLEND, own.get(CROSS_ENCODER, own[first_stage])), scores=own)


def fuse(lists: Sequence[RankedRows], k: int) -> RankedRows:
    """Reciprocal rank fusion: each list gives a row 1 / (FUSION_RANK + rank); the k rows of the highest sums.

    Of rows of equal sums, one that stands in an earlier list comes first.
    """
    sums: dict[int, float] = {}
    for rows, _ in lists:
        for rank, row in enumerate(rows.tolist(), 1):
            sums[row] = sums.get(row, 0.0) + 1 / (FUSION_RANK + rank)
    order = sorted(sums, key=lambda row: -sums[row])[:k]
    return np.array(order, dtype=np.int64), np.array([sums[row] for row in order])


@contextmanager
def _timed(answered: Answered, stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    answered.timings[stage] = 1000 * (time.perf_counter() - began)
