"""Searches in two stages: finds candidates by vectors or words, and re-ranks the best by a cross-encoder.

It also searches for files of questions, and re-ranks TREC runs of any system.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.passages import RankedRows
from finetune.evaluation.metrics import rank_run
from finetune.evaluation.trec import rank_scores, read_run, write_run
from finetune.ranking import kinds
from finetune.ranking.config import RankConfig
from finetune.ranking.embedder import MAX_CHARS, Embedder, fingerprint_bi_encoder
from finetune.ranking.model import load_model, score_answers
from finetune.ranking.retrieval import find_by_words, find_exactly, fuse

from .answers import stream_answers
from .building import find_model
from .folder import MANIFEST
from .index import Index
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

BATCH = 16  # questions per call of the models
RUN = "run.txt"


@dataclass(frozen=True)
class Hit:
    """Holds an answer, the score that it is ranked by, and the scores of all stages that scored it."""

    id: str
    text: str
    question: str
    url: str
    title: str
    score: float
    scores: dict[str, float]


@dataclass
class Answered:
    """Holds the hits of each question of a batch, best first, and the milliseconds of each stage."""

    hits: list[list[Hit]]
    timings: dict[str, float] = field(default_factory=dict)


class ReRanker:
    """Scores each question together with each of its candidates, by a sequence classifier or a fusion.

    fingerprint: that of a bi-encoder. If the fusion has the same one, its similarities are given to ``score``
    """

    def __init__(
        self, name_or_dir: str, max_length: int | None = None, precision: str = "fp32", fingerprint: str = ""
    ) -> None:
        kind = kinds.find_kind(name_or_dir)
        if kind == kinds.BI_ENCODER:
            raise KinspanError(f"--cross_encoder {name_installed(name_or_dir)} is a bi-encoder: give a ranker")
        self.name = shorten_name(name_or_dir)
        is_shared = kind == kinds.FUSION and fingerprint_bi_encoder(name_or_dir) == fingerprint
        self.model = load_model(name_or_dir, max_length, precision, [kinds.BI_ENCODER] if is_shared else [])

    def score(
        self, questions: Sequence[str], candidates: Sequence[Sequence[str]], **known: np.ndarray
    ) -> list[np.ndarray]:
        """Returns the scores of each question's candidates; all pairs are scored in joint batches.

        known: the similarities ``[N]`` of all candidates, by ``BI_ENCODER``, if ``model.known`` has it
        """
        if not any(map(len, candidates)):
            return [np.zeros(0) for _ in questions]
        limit = MAX_CHARS * self.model.max_length
        texts = [[text[:limit] for text in group] for group in candidates]
        data = make_candidates([question[:limit] for question in questions], texts)
        return np.split(self.model.score(data, **known), data.starts[1:-1])


def make_candidates(questions: Sequence[str], candidates: Sequence[Sequence[str]]) -> AnswerSet:
    """Returns questions with the texts of their candidates as an AnswerSet, whose labels are all 0."""
    texts = [text for group in candidates for text in group]
    return AnswerSet(
        name="search",
        split="candidates",
        question_ids=[str(number) for number in range(len(questions))],
        questions=questions,
        starts=np.append(0, np.cumsum([len(group) for group in candidates])).astype(np.int64),
        answer_ids=pa.array([str(number) for number in range(len(texts))], pa.large_string()),
        answers=pa.array(texts, pa.large_string()),
        labels=np.zeros(len(texts), dtype=np.int8),
    )


class Searcher:
    """Searches an index by its bi-encoder, BM25, and optionally a cross-encoder; for the settings see SearcherFlags."""

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
        location = find_model(self.index.manifest, Path(index), model)
        self.language = self.index.manifest.settings["language"]
        self.embedder = Embedder(location, self.index.manifest.settings["max_length"])
        own = self.index.manifest.model["fingerprint"]
        self.cross_encoder = ReRanker(cross_encoder, max_length, precision, own) if cross_encoder else None
        self.blend = blend
        self._num_cut = 0  # questions truncated for the bi-encoder

    def search(
        self,
        questions: Sequence[str],
        k: int = 3,
        rerank_k: int = RERANKED,
        first_stage: str = BI_ENCODER,
        candidates: int = CANDIDATES,
    ) -> Answered:
        """Returns at most k answers to each question of a batch.

        rerank_k:    number of candidates that the cross-encoder ranks, above the others; 0: no re-ranking
        first_stage: BI_ENCODER, BM25, or FUSION, the reciprocal rank fusion of both
        candidates:  number of candidates from the first stage, raised to k and rerank_k if it is lower
        """
        queries = [clean_question(question) for question in questions]
        candidates = max(candidates, k, rerank_k if self.cross_encoder else 0)
        answered, began = Answered([[] for _ in queries]), time.perf_counter()
        if not queries:
            return answered
        rankings: dict[str, list[RankedRows]] = {}
        reranker, vectors = self.cross_encoder if rerank_k else None, None
        if first_stage in (BI_ENCODER, FUSION) or (reranker and reranker.model.known):
            with _timed(answered, "encode"):
                vectors = self.embedder.embed_queries(queries)
                self._num_cut += int(self.embedder.find_cut(queries, kinds.QUERY).sum())
        if vectors is not None and first_stage != BM25:
            with _timed(answered, "nearest"):
                rankings[BI_ENCODER] = find_exactly(self.index.matrix, vectors, candidates)
        if first_stage in (BM25, FUSION):
            with _timed(answered, "words"):
                rankings[BM25] = [find_by_words(self.index.words, text, candidates, self.language) for text in queries]
        if first_stage == FUSION:
            pairs = zip(rankings[BI_ENCODER], rankings[BM25], strict=True)
            rankings[FUSION] = [fuse(pair, candidates) for pair in pairs]
        scores = [
            {stage: dict(zip(*map(np.ndarray.tolist, lists[index]), strict=True)) for stage, lists in rankings.items()}
            for index in range(len(queries))
        ]
        ranked = [rows.tolist() for rows, _ in rankings[first_stage]]
        if reranker:
            with _timed(answered, "rerank"):
                ranked = self._rerank(reranker, queries, vectors, ranked, scores, rerank_k)
        with _timed(answered, "read"):
            answered.hits = [
                [self._make_hit(row, by_stage, first_stage) for row in rows[:k]]
                for rows, by_stage in zip(ranked, scores, strict=True)
            ]
        answered.timings["total"] = 1000 * (time.perf_counter() - began)
        return answered

    def list_truncations(self) -> list[str]:
        """Returns a line for each model, with the number of questions or pairs truncated so far."""
        lines = []
        if self._num_cut:
            limit = f"questions longer than {self.embedder.max_length} tokens: {self._num_cut:,}"
            lines.append(f"{self.embedder.name}: {limit}; only their beginning is encoded; BM25 uses all words")
        if self.cross_encoder and (model := self.cross_encoder.model).num_cut:
            counts = f"{model.num_cut:,} of {model.num_pairs:,} pairs truncated (--max_length {model.max_length})"
            lines.append(f"{self.cross_encoder.name}: {counts}")
        return lines

    def _rerank(
        self,
        cross_encoder: ReRanker,
        questions: Sequence[str],
        vectors: np.ndarray | None,
        ranked: list[list[int]],
        scores: list[dict[str, dict[int, float]]],
        count: int,
    ) -> list[list[int]]:
        """Returns the rows with the first ``count`` re-ranked, and adds the new scores to ``scores``."""
        heads = [np.array(rows[:count], dtype=np.int64) for rows in ranked]
        column = self.index.texts.column("text")
        texts = [[column[row].as_py() for row in head.tolist()] for head in heads]
        known = {}
        if vectors is not None and cross_encoder.model.known:
            groups = [self.index.matrix[head].astype(np.float32) @ v for head, v in zip(heads, vectors, strict=True)]
            known[kinds.BI_ENCODER] = np.concatenate(groups)
        reranked, logits_of = [], cross_encoder.score(questions, texts, **known)
        for rows, head, logits, by_stage in zip(ranked, heads, logits_of, scores, strict=True):
            by_stage[CROSS_ENCODER] = dict(zip(head.tolist(), logits.tolist(), strict=True))
            order = head[np.argsort(-logits, kind="stable")]
            if self.blend:
                order, sums = fuse([(head, logits), (order, logits)], len(head))
                by_stage[BLEND] = dict(zip(order.tolist(), sums.tolist(), strict=True))
            reranked.append(order.tolist() + rows[count:])
        return reranked

    def _make_hit(self, row: int, by_stage: dict[str, dict[int, float]], first_stage: str) -> Hit:
        scores = {stage: float(by_row[row]) for stage, by_row in by_stage.items() if row in by_row}
        score = scores.get(BLEND, scores.get(CROSS_ENCODER, scores[first_stage]))
        return Hit(*self.index.answer(row), score=score, scores=scores)


@contextmanager
def _timed(answered: Answered, stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    answered.timings[stage] = 1000 * (time.perf_counter() - began)


def search_all(
    search: Callable[[Sequence[str], int], Answered], questions: Mapping[str, str], k: int, skip_same_id: bool
) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each question's id with at most k hits of ``search``.

    skip_same_id: drop an answer with the question's id, as BEIR does, where some questions are in the collection
    """
    names = list(questions)
    for start in show_progress("searching", "questions", range(0, len(names), BATCH), unit_scale=BATCH):
        batch = names[start : start + BATCH]
        answered = search([questions[name] for name in batch], k + skip_same_id)
        for name, hits in zip(batch, answered.hits, strict=True):
            yield name, [hit for hit in hits if not skip_same_id or hit.id != name][:k]


def list_scores(hits: Sequence[Hit]) -> dict[str, float]:
    """Returns a question's scores for a run, in the order of the hits: those not re-ranked are below the others."""
    reranked = [hit for hit in hits if CROSS_ENCODER in hit.scores] or hits
    return rank_scores([(hit.id, hit.score) for hit in reranked], [hit.id for hit in hits[len(reranked) :]])


def rerank_run(config: RankConfig) -> None:
    """Re-ranks the first candidates of each question of ``--run``, and writes RUN into ``--output_dir``."""
    run, queries, collection, output = str(config.run), str(config.queries), str(config.collection), config.output_dir
    if (Path(output) / RUN).resolve() == Path(run).resolve():
        raise KinspanError(f"--output_dir {output}: its {RUN} is the input run: give another folder")
    ranked = rank_run(read_run(Path(run)))
    heads = {question: ids[: config.depth] for question, ids in ranked.items()}
    candidates = [name for ids in heads.values() for name in ids]
    questions = read_questions(queries)
    if missing := [question for question in ranked if question not in questions]:
        raise KinspanError(f"{run}: question {missing[0]} is not in {queries}")
    texts = _find_texts(collection, set(candidates))
    if lost := [name for name in candidates if name not in texts]:
        raise KinspanError(f"{run}: candidate {lost[0]} has no text in {collection}")
    make_folder(Path(output))
    data = make_candidates([questions[name] for name in heads], [[texts[n] for n in ids] for ids in heads.values()])
    data = replace(data, question_ids=list(heads), answer_ids=pa.array(candidates, pa.large_string()))
    logger.info(f"{run}: {data.num_questions:,} questions, {data.num_pairs:,} candidates to re-rank")
    scores = score_answers(config.model, data, config.max_length, config.precision)
    rankings = []
    for (question, ids), new in zip(heads.items(), np.split(scores, data.starts[1:-1]), strict=True):
        best = [(ids[n], new[n]) for n in np.argsort(-new, kind="stable")]
        rankings.append((question, rank_scores(best, ranked[question][config.depth :])))
    write_run(Path(output) / RUN, rankings, shorten_name(config.model))


def _find_texts(collection: str, wanted: set[str]) -> dict[str, str]:
    """Returns the wanted texts of a collection by id. Raises KinspanError if an id has two texts."""
    if (Path(collection) / MANIFEST).is_file():
        table = Index(collection).texts
        table = table.filter(pc.is_in(table["id"], value_set=pa.array(list(wanted), pa.large_string())))
        return dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    texts: dict[str, str] = {}
    for answer in stream_answers(collection, {}, all_answers=True):
        if answer.id in wanted and answer.text and texts.setdefault(answer.id, answer.text) != answer.text:
            raise KinspanError(f"{collection}: the id {answer.id!r} has two different texts")
    return texts
