"""Rankings and judgements as TREC files, which other tools read, and predictions for people to read.

run:   lines of `question Q0 candidate rank score tag`; trec_eval ranks by the score and ignores the rank
qrels: lines of `question 0 candidate relevance`, or BEIR's form (see beir.py)
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import make_folder, write_atomically
from finetune.data.answers import AnswerSet

from .beir import QRELS, find_beir_file, read_beir_qrels
from .metrics import Qrels, Run, rank_rows, rank_run

Number = TypeVar("Number", int, float)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Returns the scores by question and candidate, in the order of the file.

    Raises KinspanError, naming the row, for a malformed line and a candidate that comes twice; and for a file that is
    empty or cannot be read.
    """
    import ir_measures

    return _gather(path, lambda file: ((r.query_id, r.doc_id, r.score) for r in ir_measures.read_trec_run(file)))


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Returns the relevance by question and candidate, in the order of the file; below 0 it means not judged.

    path: a TREC file, a file of BEIR's judgements, whose first line tells it, or a folder in BEIR's form

    Raises KinspanError as ``read_run`` does.
    """
    import ir_measures

    if beir := find_beir_file(path, QRELS):
        return read_beir_qrels(beir)
    if path.is_file() and path.read_bytes()[:100].partition(b"\n")[0].replace(b'"', b"").split()[2:] == [b"score"]:
        return read_beir_qrels(path)
    return _gather(path, lambda file: ((r.query_id, r.doc_id, r.relevance) for r in ir_measures.read_trec_qrels(file)))


def _gather(path: Path, read: Callable[[Any], Iterable[tuple[str, str, Number]]]) -> dict[str, dict[str, Number]]:
    """Returns the numbers that ``read`` yields by question and candidate."""
    values: dict[str, dict[str, Number]] = {}
    row = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for row, (question, candidate, value) in enumerate(read(file), 1):
                of_question = values.setdefault(question, {})
                if candidate in of_question:
                    raise KinspanError(f"{path} row {row}: candidate {candidate} of question {question} comes twice")
                of_question[candidate] = value
    except OSError as error:
        raise KinspanError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KinspanError(f"{path} row {row + 1}: {quote_error(error)}") from error
    if not values:
        raise KinspanError(f"{path}: no row in it")
    return values


def find_line(path: Path, question: str, candidate: str | None = None) -> int:
    """Returns the number of the first line of a run that has this question, and this candidate of it."""
    wanted = [question] if candidate is None else [question, candidate]
    with path.open(encoding="utf-8-sig") as file:
        return next(number for number, line in enumerate(file, 1) if line.split()[: 2 * len(wanted) : 2] == wanted)


def describe_coverage(qrels: Qrels, run: Run) -> list[str]:
    """Returns lines of what one file has and the other lacks, and how it counts.

    Raises KinspanError where they share no question.
    """
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
    """Writes run.txt, qrels.txt and predictions.jsonl, each of which is whole or as it was before.

    tag: the system's name in run.txt

    run.txt and predictions.jsonl have the candidates best first, as trec_eval ranks them. Scores are written so that
    they read back unchanged. Each line of predictions.jsonl is a question: ``{question_id, question, candidates: [{id,
    text, score, label}]}``. Raises KinspanError for an id that is empty or has white space, for a score that is not
    finite, and where the folder cannot be written.
    """
    order = _write_run(folder, data, scores, tag)
    ids, labels = data.answer_ids.to_pylist(), data.labels.tolist()

    def qrels_lines() -> Iterator[str]:
        for question, rows in zip(data.question_ids, data.question_slices(), strict=True):
            for row in range(rows.start, rows.stop):
                yield f"{question} 0 {ids[row]} {labels[row]}\n"

    write_lines(folder / "qrels.txt", qrels_lines())
    write_lines(folder / "predictions.jsonl", _list_questions(data, scores, order, labels))


def write_ranking(folder: Path, data: AnswerSet, scores: np.ndarray, tag: str) -> None:
    """Writes run.txt and ranking.jsonl, for candidates without labels; they and errors are as of write_predictions."""
    order = _write_run(folder, data, scores, tag)
    write_lines(folder / "ranking.jsonl", _list_questions(data, scores, order))


def write_run(path: Path, rankings: Iterable[tuple[str, Mapping[str, float]]], tag: str) -> int:
    """Writes the candidates of each question as TREC's lines, best first as trec_eval ranks them; returns their number.

    rankings: the scores by candidate of each question; written as they come

    Raises as ``write_predictions`` does.
    """
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for question, scores in rankings:
            _check_id(f"{path}: the question", question)
            ranked = rank_run({question: scores})[question]
            for rank, candidate in enumerate(ranked, 1):
                _check_id(f"{path}: the candidate", candidate)
                yield f"{question} Q0 {candidate} {rank} {scores[candidate]!r} {'_'.join(tag.split())}\n"
            count += len(ranked)

    write_lines(path, lines())
    return count


def append_below(scores: Mapping[str, float], rest: Iterable[str]) -> dict[str, float]:
    """Returns the scores, and those of ``rest``, whose candidates rank below them in the order that they have.

    Scores of two stages do not compare: what the second did not rank gets whole numbers, which 32 bits hold exactly.
    """
    lowest = math.floor(min(scores.values(), default=0))
    return {**scores, **{candidate: float(lowest - place) for place, candidate in enumerate(rest, 1)}}


def _write_run(folder: Path, data: AnswerSet, scores: np.ndarray, tag: str) -> np.ndarray:
    """Writes run.txt, and returns the rows of each question best first, as ``metrics.rank_rows`` does."""
    _check_ids(data)
    tag = "_".join(tag.split())
    order = rank_rows(data, scores)
    ids, values = data.answer_ids.to_pylist(), scores.astype(np.float64).tolist()

    def lines() -> Iterator[str]:
        for question, rows in zip(data.question_ids, data.question_slices(), strict=True):
            for rank, row in enumerate(order[rows].tolist(), 1):
                yield f"{question} Q0 {ids[row]} {rank} {values[row]!r} {tag}\n"

    make_folder(folder)
    write_lines(folder / "run.txt", lines())
    return order


def _list_questions(
    data: AnswerSet, scores: np.ndarray, order: np.ndarray, labels: list[int] | None = None
) -> Iterator[str]:
    """Yields a line of JSON for each question, with its candidates best first, and their labels if given."""
    ids, texts = data.answer_ids.to_pylist(), data.answers.to_pylist()
    values = scores.astype(np.float64).tolist()
    for question_id, question, rows in zip(data.question_ids, data.questions, data.question_slices(), strict=True):
        candidates: list[dict[str, Any]] = [
            {"id": ids[row], "text": texts[row], "score": values[row]} | ({"label": labels[row]} if labels else {})
            for row in order[rows].tolist()
        ]
        line = {"question_id": question_id, "question": question, "candidates": candidates}
        yield json.dumps(line, ensure_ascii=False) + "\n"


def _check_ids(data: AnswerSet) -> None:
    for kind, ids in (("question", data.question_ids), ("candidate", data.answer_ids.to_pylist())):
        for name in ids:
            _check_id(f"{data.name} {data.split}: the {kind}", name)


def _check_id(named: str, name: str) -> None:
    """Raises KinspanError for an id that a TREC file cannot hold: an empty one, or one with white space."""
    if not is_trec_id(name):
        raise KinspanError(f"{named} id {name!r} is empty or has white space, which a TREC file cannot hold")


def is_trec_id(name: str) -> bool:
    """Whether a TREC file can hold it."""
    return name.split() == [name]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file that is whole or as it was before. Raises KinspanError where that is not possible."""
    try:
        write_atomically(path, lines)
    except OSError as error:
        raise KinspanError(f"{path} cannot be written: {error.strerror}") from error
