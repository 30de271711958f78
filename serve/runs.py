"""Runs: what a search finds for many questions, for a TREC file; and a run of any system, re-ranked."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import shorten_name
from finetune.evaluation.metrics import rank_run
from finetune.evaluation.trec import append_below, read_run, write_run
from finetune.ranking.model import score_answers

from .answers import stream_answers
from .folder import MANIFEST
from .index import Index, find_ids, iterate_answers
from .question_files import read_questions
from .questions import CROSS_ENCODER
from .rerank import make_candidates
from .search import Hit, Searcher

logger = logging.getLogger(__name__)

BATCH = 16  # questions that are searched together
RUN = "run.txt"


def search_all(
    searcher: Searcher, questions: Mapping[str, str], k: int, without_own: bool, **ways: Any
) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each question's id with its k best hits, as far as that many are found.

    without_own: an answer with the id of the question is left out, as in BEIR, where some questions are texts too
    ways:        further arguments of ``Searcher.search``
    """
    names, own, nothing = list(questions), 0, 0
    for start in show_progress("searching", "questions", range(0, len(names), BATCH), unit_scale=BATCH):
        batch = names[start : start + BATCH]
        answered = searcher.search([questions[name] for name in batch], k + without_own, **ways)
        for name, found in zip(batch, answered.hits, strict=True):
            hits = [hit for hit in found if not without_own or hit.id != name]
            own, nothing = own + len(found) - len(hits), nothing + (not hits)
            yield name, hits[:k]
    if own:
        logger.info(f"left out {own:,} answers with the id of their question, as BEIR does")
    if nothing:
        logger.info(f"nothing was found for {nothing:,} questions, which the run lacks")


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
    *,
    depth: int,
    max_length: int | None,
    precision: str,
) -> None:
    """Ranks the first candidates of each question of a TREC run by a model, and writes RUN into the folder ``output``.

    queries:    what ``read_questions`` takes
    collection: an index, or what ``stream_answers`` takes
    depth:      so many candidates of a question are ranked again; the others follow in their order

    Raises KinspanError, naming the line of the run, for a question or a candidate without text.
    """
    if (output / RUN).resolve() == run.resolve():
        raise KinspanError(f"--output_dir {output}: its {RUN} is the run that is read: give another folder")
    ranked = rank_run(read_run(run))
    heads = {question: ids[:depth] for question, ids in ranked.items()}
    questions = read_questions(queries)
    if missing := [question for question in ranked if question not in questions]:
        raise KinspanError(f"{run}: question {missing[0]} is not in {queries} ({len(missing):,} such)")
    texts = _find_texts(collection, {name for ids in heads.values() for name in ids})
    if lost := [(question, name) for question, ids in heads.items() for name in ids if name not in texts]:
        raise KinspanError(f"{run}: candidate {lost[0][1]} has no text in {collection} ({len(lost):,} such)")
    make_folder(output)
    data = replace(
        make_candidates([questions[name] for name in heads], [[texts[name] for name in ids] for ids in heads.values()]),
        question_ids=list(heads),
        answer_ids=pa.array([name for ids in heads.values() for name in ids], pa.large_string()),
    )
    kept = sum(map(len, ranked.values())) - data.num_pairs
    logger.info(
        f"{run}: {data.num_questions:,} questions, {data.num_pairs:,} candidates to re-rank, {kept:,} kept below them"
    )
    scores = np.split(score_answers(model, data, max_length, precision=precision), data.starts[1:-1])
    rankings = (
        (question, append_below(dict(zip(ids, own.tolist(), strict=True)), ranked[question][depth:]))
        for (question, ids), own in zip(heads.items(), scores, strict=True)
    )
    write_run(output / RUN, rankings, shorten_name(name_installed(model)))
    logger.info(f"{output / RUN} is written")


def _find_texts(collection: str, wanted: set[str]) -> dict[str, str]:
    """The texts by id of those of a collection that are wanted. Raises KinspanError where an id has two."""
    if (Path(collection) / MANIFEST).is_file():
        index = Index(collection)
        rows = find_ids(index.texts, wanted)
        return {answer.id: answer.text for answer in iterate_answers(index.texts, rows)}
    texts: dict[str, str] = {}
    for answer in stream_answers(collection, {}, all_answers=True):
        if answer.id in wanted and texts.setdefault(answer.id, answer.text) != answer.text:
            raise KinspanError(f"{collection}: the id {answer.id!r} stands there twice, with different texts")
    return texts
