"""Search in two stages: many candidates by vectors or words, of which a cross-encoder then ranks the best.

Also for files of questions, into runs in TREC's form; and the re-ranking of a run of any system.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import rank_run
from finetune.evaluation.trec import append_below, read_run, write_run
from finetune.ranking import kinds
from finetune.ranking.embedder import Embedder
from finetune.ranking.model import load_model, score_answers

from .answers import stream_answers
from .building import find_model
from .folder import MANIFEST
from .index import Index, RankedRows, find_ids, iterate_answers
from .questions import (
    BI_ENCODER,
    BLEND,
    BM25,
    CANDIDATES,
    CROSS_ENCODER,
    FUSION,
    RERANKED,
    clean_question,
    read_questions,
)

logger = logging.getLogger(__name__)

BATCH = 16  # questions that are searched together
RUN = "run.txt"
FUSION_RANK = 60  # added to each rank (Cormack et al., 2009)
MAX_CHARS = 50  # of a token: texts are cut to this many times the most tokens before they are tokenised


@dataclass(frozen=True)
class Hit:
    """An answer that a search returns: the score that it is ranked by, and those of all stages that gave it one."""

    id: str
    text: str
    question: str
    url: str
    title: str
    score: float
    scores: dict[str, float]


@dataclass
class Answered:
    """Holds the hits of each question of a batch, the best first, and the milliseconds of each stage."""

    hits: list[list[Hit]]
    timings: dict[str, float] = field(default_factory=dict)


class ReRanker:
    """A sequence classifier that reads each question together with its candidates."""

    def __init__(self, name_or_dir: str, max_length: int | None = None, precision: str = "fp32") -> None:
        if kinds.find_kind(name_or_dir) == kinds.BI_ENCODER:
            raise KinspanError(f"--cross_encoder {name_installed(name_or_dir)} is a bi-encoder: give a ranker")
        self.name = shorten_name(name_or_dir)
        self.model = load_model(name_or_dir, max_length, precision=precision)

    def score(self, questions: Sequence[str], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Returns the score of each candidate of each question, from as few forward passes as fit."""
        if not any(map(len, candidates)):
            return [np.zeros(0) for _ in questions]
        room = MAX_CHARS * self.model.max_length
        texts = [[text[:room] for text in of_question] for of_question in candidates]
        data = make_candidates([question[:room] for question in questions], texts)
        return np.split(self.model.score(data), data.starts[1:-1])


def make_candidates(questions: Sequence[str], candidates: Sequence[Sequence[str]]) -> AnswerSet:
    """Returns questions and the texts of their candidates in the form that is scored, without labels."""
    texts = [text for of_question in candidates for text in of_question]
    return AnswerSet(
        name="search",
        split="candidates",
        question_ids=[str(number) for number in range(len(questions))],
        questions=questions,
        starts=np.append(0, np.cumsum([len(of_question) for of_question in candidates])).astype(np.int64),
        answer_ids=pa.array([str(number) for number in range(len(texts))], pa.large_string()),
        answers=pa.array(texts, pa.large_string()),
        labels=np.zeros(len(texts), dtype=np.int8),
    )


class Searcher:
    """An index, its bi-encoder, and a cross-encoder if there is one, ready to answer; SearcherFlags has the settings.

    Raises KinspanError for what is missing or damaged, or if the model is not the one of the index.
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
        self.index = Index(index)
        place = find_model(self.index.manifest, Path(index), model)
        self.embedder = Embedder(place, self.index.manifest.settings["max_length"])
        self.cross_encoder = ReRanker(cross_encoder, max_length, precision) if cross_encoder else None
        self.blend = blend
        self._num_cut = 0  # questions of which the bi-encoder read the beginning alone

    def search(
        self,
        questions: Sequence[str],
        k: int = 3,
        rerank_k: int = RERANKED,
        first_stage: str = BI_ENCODER,
        candidates: int = CANDIDATES,
        exact: bool = False,
    ) -> Answered:
        """Answers a batch of questions, each by at most k answers.

        rerank_k:    number of candidates that the cross-encoder ranks, above the others; 0 leaves it out
        first_stage: finds the candidates: BI_ENCODER, BM25, or FUSION, the reciprocal rank fusion of both
        candidates:  of the first stage; at least k and rerank_k
        exact:       compare all vectors, also if the index has an approximate one

        Raises KinspanError for an empty question.
        """
        asked = [clean_question(question) for question in questions]
        candidates = max(candidates, k, rerank_k if self.cross_encoder else 0)
        answered, began = Answered([[] for _ in asked]), time.perf_counter()
        if not asked:
            return answered
        rankings: dict[str, list[RankedRows]] = {}
        if first_stage in (BI_ENCODER, FUSION):
            with _timed(answered, "encode"):
                vectors = self.embedder.embed_queries(asked)
                self._num_cut += int(self.embedder.find_cut(asked, kinds.QUERY).sum())
            with _timed(answered, "nearest"):
                rankings[BI_ENCODER] = self.index.find_nearest(vectors, candidates, exact)
        if first_stage in (BM25, FUSION):
            with _timed(answered, "words"):
                rankings[BM25] = [self.index.words.find(question, candidates) for question in asked]
        if first_stage == FUSION:
            both = zip(rankings[BI_ENCODER], rankings[BM25], strict=True)
            rankings[FUSION] = [fuse(lists, candidates) for lists in both]
        scores = [
            {stage: dict(zip(*map(np.ndarray.tolist, lists[number]), strict=True)) for stage, lists in rankings.items()}
            for number in range(len(asked))
        ]
        ranked = [rows.tolist() for rows, _ in rankings[first_stage]]
        if self.cross_encoder and rerank_k:
            with _timed(answered, "rerank"):
                ranked = self._rerank(self.cross_encoder, asked, ranked, scores, rerank_k)
        with _timed(answered, "read"):
            answered.hits = [
                [self._make_hit(row, of_stage, first_stage) for row in rows[:k]]
                for rows, of_stage in zip(ranked, scores, strict=True)
            ]
        answered.timings["total"] = 1000 * (time.perf_counter() - began)
        return answered

    def list_cuts(self) -> list[str]:
        """Returns lines on how many questions the bi-encoder cut so far, and how many pairs the cross-encoder did."""
        lines = []
        if self._num_cut:
            limit = f"questions longer than {self.embedder.max_length} tokens: {self._num_cut:,}"
            lines.append(f"{self.embedder.name}: {limit}; it reads how they begin, BM25 all of them")
        if self.cross_encoder and (model := self.cross_encoder.model).num_cut:
            counts = f"{model.num_cut:,} of {model.num_pairs:,} pairs cut (--max_length {model.max_length})"
            lines.append(f"{self.cross_encoder.name}: {counts}")
        return lines

    def _rerank(
        self,
        cross_encoder: ReRanker,
        questions: Sequence[str],
        ranked: list[list[int]],
        scores: list[dict[str, dict[int, float]]],
        count: int,
    ) -> list[list[int]]:
        """Returns the rows with the first ``count`` in their new order, and adds the new scores to ``scores``."""
        texts = [[self.index.answer(row).text for row in rows[:count]] for rows in ranked]
        reranked = []
        for rows, given, of_stage in zip(ranked, cross_encoder.score(questions, texts), scores, strict=True):
            head = np.array(rows[:count], dtype=np.int64)
            of_stage[CROSS_ENCODER] = dict(zip(head.tolist(), given.tolist(), strict=True))
            order = head[np.argsort(-given, kind="stable")]
            if self.blend:
                order, sums = fuse([(head, given), (order, given)], len(head))
                of_stage[BLEND] = dict(zip(order.tolist(), sums.tolist(), strict=True))
            reranked.append(order.tolist() + rows[count:])
        return reranked

    def _make_hit(self, row: int, of_stage: dict[str, dict[int, float]], first_stage: str) -> Hit:
        scores = {stage: float(by_row[row]) for stage, by_row in of_stage.items() if row in by_row}
        score = scores.get(BLEND, scores.get(CROSS_ENCODER, scores[first_stage]))
        return Hit(*self.index.answer(row), score=score, scores=scores)


def fuse(lists: Sequence[RankedRows], k: int) -> RankedRows:
    """Returns the k rows of the highest sums over lists of 1 / (FUSION_RANK + rank); of equal sums the earlier one."""
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


def search_all(
    search: Callable[[Sequence[str], int], Answered], questions: Mapping[str, str], k: int, skip_same_id: bool
) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each question's id with at most k hits of ``search``.

    skip_same_id: an answer with the id of the question is left out, as in BEIR, where some questions are texts too
    """
    names = list(questions)
    for start in show_progress("searching", "questions", range(0, len(names), BATCH), unit_scale=BATCH):
        batch = names[start : start + BATCH]
        answered = search([questions[name] for name in batch], k + skip_same_id)
        for name, hits in zip(batch, answered.hits, strict=True):
            yield name, [hit for hit in hits if not skip_same_id or hit.id != name][:k]


def list_scores(hits: Sequence[Hit]) -> dict[str, float]:
    """Returns a question's scores as a run holds them: what was not re-ranked is below what was, in its order."""
    first = [hit for hit in hits if CROSS_ENCODER in hit.scores] or hits
    return append_below({hit.id: hit.score for hit in first}, [hit.id for hit in hits[len(first) :]])


def rerank_run(
    model: str,
    run: Path,
    queries: str,
    collection: str,
    output: Path,
    depth: int = CANDIDATES,
    max_length: int | None = None,
    precision: str = "fp32",
) -> None:
    """Ranks the first candidates of each question of a TREC run by a model, and writes RUN into the folder ``output``.

    queries:    what ``read_questions`` takes
    collection: an index, or what ``stream_answers`` takes
    depth:      number of a question's candidates that are ranked again; the others follow in their order

    Raises KinspanError, naming the line of the run, for a question or a candidate without text.
    """
    if (output / RUN).resolve() == run.resolve():
        raise KinspanError(f"--output_dir {output}: its {RUN} is the run that is read: give another folder")
    ranked = rank_run(read_run(run))
    heads = {question: ids[:depth] for question, ids in ranked.items()}
    questions = read_questions(queries)
    if missing := [question for question in ranked if question not in questions]:
        raise KinspanError(f"{run}: question {missing[0]} is not in {queries}")
    texts = _find_texts(collection, {name for ids in heads.values() for name in ids})
    if lost := [(question, name) for question, ids in heads.items() for name in ids if name not in texts]:
        raise KinspanError(f"{run}: candidate {lost[0][1]} has no text in {collection}")
    make_folder(output)
    data = replace(
        make_candidates([questions[name] for name in heads], [[texts[name] for name in ids] for ids in heads.values()]),
        question_ids=list(heads),
        answer_ids=pa.array([name for ids in heads.values() for name in ids], pa.large_string()),
    )
    logger.info(f"{run}: {data.num_questions:,} questions, {data.num_pairs:,} candidates to re-rank")
    scores = np.split(score_answers(model, data, max_length, precision=precision), data.starts[1:-1])
    rankings = (
        (question, append_below(dict(zip(ids, of_question.tolist(), strict=True)), ranked[question][depth:]))
        for (question, ids), of_question in zip(heads.items(), scores, strict=True)
    )
    write_run(output / RUN, rankings, shorten_name(name_installed(model)))


def _find_texts(collection: str, wanted: set[str]) -> dict[str, str]:
    """Returns the wanted texts of a collection by id. Raises KinspanError if an id has two texts."""
    if (Path(collection) / MANIFEST).is_file():
        index = Index(collection)
        rows = find_ids(index.texts, wanted)
        return {answer.id: answer.text for answer in iterate_answers(index.texts, rows)}
    texts: dict[str, str] = {}
    for answer in stream_answers(collection, {}, all_answers=True):
        if answer.id in wanted and answer.text and texts.setdefault(answer.id, answer.text) != answer.text:
            raise KinspanError(f"{collection}: the id {answer.id!r} has two different texts")
    return texts
