"""Runs in TREC's form: of a search for many questions; and of any system, re-ranked."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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
from .questions import CROSS_ENCODER, read_questions
from .search import Answered, Hit, make_candidates

logger = logging.getLogger(__name__)

BATCH = 16  # questions that are searched together
RUN = "run.txt"


def search_all(
    search: Callable[[Sequence[str], int], Answered], questions: Mapping[str, str], k: int, skip_same_id: bool
) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each question's id with at most k hits, the best first.

    search:       ``Searcher.search`` for questions and k
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
    *,
    depth: int,
    max_length: int | None,
    precision: str,
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
