"""Rankings and judgements as files that other tools read, and predictions for people to read.

run:   lines of `question Q0 candidate rank score tag`; trec_eval ranks by the score and ignores the rank
qrels: lines of `question 0 candidate relevance`, or BEIR's form (Thakur et al., 2021)

A folder in BEIR's form holds corpus.jsonl (``{"_id": ..., "title": ..., "text": ...}``), queries.jsonl (``{"_id": ...,
"text": ...}``, the questions of all splits) and qrels/test.tsv (`query-id corpus-id score`, below these names).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.prepare.document import QUESTION_IDS
from finetune.data.answers import AnswerSet
from finetune.data.dataset import find_files
from finetune.data.tables import read_lines, read_quoted_tsv

from .metrics import Qrels, Run, rank_rows, rank_run

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"  # of BEIR's form
COLUMNS = ("query-id", "corpus-id", "score")

Number = TypeVar("Number", int, float)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Returns the scores by question and candidate, in the order of the file."""
    return _gather(path, 6, 4, float)


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Returns the relevance by question and candidate, in the order of the file; below 0 it means not judged.

    path: a TREC file, a file of BEIR's judgements (recognised by its first line), or a folder in BEIR's form
    """
    if beir := find_beir_file(path, QRELS):
        return read_beir_qrels(beir)
    first = next((text for _, text in read_lines(path)), "")
    if first.replace('"', "").partition("\t")[0] in QUESTION_IDS:
        return read_beir_qrels(path)
    return _gather(path, 4, 3, _parse_relevance)


def _parse_relevance(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise ValueError(f"the score {text!r} is not an integer of nine digits at most")
    return int(text)


def _gather(path: Path, size: int, column: int, parse: Callable[[str], Number]) -> dict[str, dict[str, Number]]:
    """Returns the numbers in one of ``size`` columns, by question and candidate."""
    values: dict[str, dict[str, Number]] = {}
    for line, text in read_lines(path):
        if not (fields := text.split()):
            continue
        try:
            if len(fields) != size:
                raise ValueError(f"{len(fields)} fields, not {size}")
            if fields[2] in (scores_of := values.setdefault(fields[0], {})):
                raise ValueError(f"candidate {fields[2]} of question {fields[0]} comes twice")
            scores_of[fields[2]] = parse(fields[column])
        except ValueError as error:
            raise KinspanError(f"{path} line {line}: {quote_error(error)}") from error
    if not values:
        raise KinspanError(f"{path}: no row in it")
    return values


def find_beir_file(folder: Path, name: str) -> Path | None:
    """Returns this file of a folder, compressed or not, or None."""
    return next(iter(find_files(folder, [name])), None)


def read_beir_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Returns the relevance by question and candidate, in the order of the file, whose fields may be quoted.

    Repeated lines count once; a pair with two scores is refused.
    """
    table = read_quoted_tsv(path)
    if len(table.fields) != len(COLUMNS) or table.fields[0] not in QUESTION_IDS:
        raise KinspanError(f"{path} line 1: not the column names of BEIR's judgements: {' '.join(COLUMNS)}")
    judged: dict[str, dict[str, int]] = {}
    for number, record in table.records(table.fields):
        question, candidate, score = (record[name] for name in table.fields)
        try:
            relevance = _parse_relevance(score)
        except ValueError as error:
            raise KinspanError(f"{table.place} {number}: {error}") from error
        if judged.setdefault(question, {}).setdefault(candidate, relevance) != relevance:
            raise KinspanError(f"{table.place} {number}: candidate {candidate} of question {question} has two scores")
    if not judged:
        raise KinspanError(f"{path}: no judgements in it")
    return judged


def list_unshared(qrels: Qrels, run: Run) -> list[str]:
    """Returns counts of what only one of the files has, in words. Raises KinspanError if they share no question."""
    shared = [question for question in qrels if question in run]
    if not shared:
        raise KinspanError(f"no question of the run, such as {next(iter(run))}, is in the qrels")
    counts = {
        "questions of the qrels that are not in the run, which count 0": len(qrels) - len(shared),
        "questions of the run that are not in the qrels, which are ignored": len(run) - len(shared),
        "candidates of the run that are not in the qrels, which count as no answer": sum(
            len(run[q].keys() - qrels[q].keys()) for q in shared
        ),
    }
    return [f"{line}: {count:,}" for line, count in counts.items() if count]


def write_predictions(folder: Path, data: AnswerSet, scores: np.ndarray, tag: str) -> None:
    """Writes run.txt, qrels.txt and predictions.jsonl, each atomically.

    run.txt and predictions.jsonl have the candidates best first, as trec_eval ranks them. Scores read back unchanged.
    Each line of predictions.jsonl is a question: ``{question_id, question, candidates: [{id, text, score, label}]}``.
    """
    labels = data.labels.tolist()
    write_ranking(folder, data, scores, tag, labels)
    rows = zip(data.question_of, data.answer_ids.to_pylist(), labels, strict=True)
    write_atomically(folder / "qrels.txt", (f"{data.question_ids[q]} 0 {name} {label}\n" for q, name, label in rows))


def write_ranking(folder: Path, data: AnswerSet, scores: np.ndarray, tag: str, labels: list[int] | None = None) -> None:
    """Writes run.txt and ranking.jsonl; with ``labels``, predictions.jsonl in its place."""
    ids, values = data.answer_ids.to_pylist(), scores.astype(np.float64).tolist()
    rankings = (
        (question, dict(zip(ids[rows], values[rows], strict=True)))
        for question, rows in zip(data.question_ids, data.question_slices(), strict=True)
    )
    make_folder(folder)
    write_run(folder / "run.txt", rankings, tag)
    name = "ranking.jsonl" if labels is None else "predictions.jsonl"
    write_atomically(folder / name, _list_questions(data, scores, labels))


def _list_questions(data: AnswerSet, scores: np.ndarray, labels: list[int] | None) -> Iterator[str]:
    """Yields a line of JSON for each question, with its candidates best first, and their labels if given."""
    order, ids, texts = rank_rows(data, scores), data.answer_ids.to_pylist(), data.answers.to_pylist()
    values = scores.astype(np.float64).tolist()
    for question_id, question, rows in zip(data.question_ids, data.questions, data.question_slices(), strict=True):
        candidates: list[dict[str, Any]] = [
            {"id": ids[row], "text": texts[row], "score": values[row]} | ({"label": labels[row]} if labels else {})
            for row in order[rows].tolist()
        ]
        line = {"question_id": question_id, "question": question, "candidates": candidates}
        yield json.dumps(line, ensure_ascii=False) + "\n"


def write_run(path: Path, rankings: Iterable[tuple[str, Mapping[str, float]]], tag: str) -> None:
    """Writes the candidates of each question as TREC's lines, best first as trec_eval ranks them.

    rankings: the scores by candidate of each question, in the order in which they are written
    """

    def lines() -> Iterator[str]:
        for question, scores in rankings:
            ranked = rank_run({question: scores})[question]
            for name in (question, *ranked):
                if not is_trec_id(name):
                    raise KinspanError(f"{path}: the id {name!r} is empty or has white space")
            for rank, candidate in enumerate(ranked, 1):
                yield f"{question} Q0 {candidate} {rank} {scores[candidate]!r} {'_'.join(tag.split())}\n"

    write_atomically(path, lines())


def rank_scores(ranked: Iterable[tuple[str, float]], rest: Iterable[str] = ()) -> dict[str, float]:
    """Returns scores by which TREC tools rank the candidates in this order, since they fall strictly in 32 bits.

    ranked: candidates and their scores, best first; of equal scores, the later are lowered by a bit
    rest:   candidates below, whose scores are not comparable: they get whole numbers, exact in 32 bits
    """
    scores: dict[str, float] = {}
    for candidate, score in ranked:
        above = np.float32(next(reversed(scores.values()), np.inf))
        is_below = np.float32(score) < above or not scores
        scores[candidate] = float(score if is_below else np.nextafter(above, np.float32(-np.inf)))
    lowest = math.floor(min(scores.values(), default=0))
    return {**scores, **{candidate: float(lowest - rank) for rank, candidate in enumerate(rest, 1)}}


def is_trec_id(name: str) -> bool:
    """Returns whether a TREC file can hold an id."""
    return name.split() == [name]
