"""Rankings and judgements as TREC files, which other tools read, and predictions for people to read.

run:   lines of `question Q0 candidate rank score tag`; trec_eval ranks by the score and ignores the rank
qrels: lines of `question 0 candidate relevance`, or BEIR's form (see beir.py)
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, write_atomically
from finetune.data.answers import AnswerSet

from .beir import QRELS, find_beir_file, read_beir_qrels
from .metrics import Qrels, Run, rank_rows, rank_run

RUN_LINE, QRELS_LINE = "question Q0 candidate rank score tag", "question 0 candidate relevance"
MOST_RELEVANCE = 2**31 - 1
_WHITE_SPACE = re.compile(r"[ \t\n\r\f\v]")  # these separate the fields of a line; other white space does not

Number = TypeVar("Number", int, float)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Returns the scores by question and candidate, in the order of the file.

    Raises KinspanError, naming the line, for a malformed line, a score that is not finite, and a candidate that comes
    twice; and for a file that is empty or cannot be read.
    """
    return _read_table(path, RUN_LINE, 4, _parse_score)


def read_scores(path: Path, data: AnswerSet) -> np.ndarray:
    """The scores ``[N]`` that a run has of these candidates. Raises KinspanError as ``read_run`` does."""
    run = read_run(path)
    candidates = zip(data.question_of.tolist(), data.answer_ids.to_pylist(), strict=True)
    return np.array([run[data.question_ids[question]][candidate] for question, candidate in candidates])


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Returns the relevance by question and candidate, in the order of the file; below 0 it means not judged.

    path: a TREC file, a file of BEIR's judgements, whose first line tells it, or a folder in BEIR's form

    Raises KinspanError as ``read_run`` does, and for a relevance that is not an integer.
    """
    if beir := find_beir_file(path, QRELS):
        return read_beir_qrels(beir)
    if path.is_dir():
        raise KinspanError(f"{path}: no {QRELS} in this folder: give a file of judgements, or a folder in BEIR's form")
    if next((line for _, line in _read_lines(path)), b"").replace(b'"', b"").split()[2:] == [b"score"]:
        return read_beir_qrels(path)
    return _read_table(path, QRELS_LINE, 3, _parse_relevance)


def find_line(path: Path, question: str, candidate: str | None = None) -> int:
    """Returns the number of the first line of a run that has this question, and this candidate of it."""
    wanted = [question.encode()] + ([candidate.encode()] if candidate is not None else [])
    return next(number for number, line in _read_lines(path) if line.split()[: 2 * len(wanted) : 2] == wanted)


def describe_coverage(qrels: Qrels, run: Run) -> list[str]:
    """Says what one file has and the other lacks, and how it counts, a line each.

    Raises KinspanError where they share no question.
    """
    shared = [question for question in qrels if question in run]
    if not shared:
        example = f"{next(iter(run))} in the run, {next(iter(qrels))} in the qrels"
        raise KinspanError(f"no question of the run is in the qrels ({example}): are they of one data set?")
    unjudged = sum(len(run[q].keys() - qrels[q].keys()) for q in shared)
    unranked = sum(len(qrels[q].keys() - run[q].keys()) for q in shared)
    barren = sum(all(relevance <= 0 for relevance in of_question.values()) for of_question in qrels.values())
    counts = {
        "questions of the qrels that are not in the run, which count 0": len(qrels) - len(shared),
        "questions of the run that are not in the qrels, which are ignored": len(run) - len(shared),
        "questions of the qrels without an answer, which count 0": barren,
        "candidates of the run that are not in the qrels, which count as no answer": unjudged,
        "candidates of the qrels that are not in the run, which count as not found": unranked,
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
                yield f"{question} Q0 {candidate} {rank} {scores[candidate]!r} {_WHITE_SPACE.sub('_', tag)}\n"
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
    tag = _WHITE_SPACE.sub("_", tag)
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
    """Raises KinspanError for an id that a TREC file cannot hold: an empty one, or one with white space."""
    for kind, ids in (("question", data.question_ids), ("candidate", data.answer_ids.to_pylist())):
        for name in ids:
            _check_id(f"{data.name} {data.split}: the {kind}", name)


def _check_id(place: str, name: str) -> None:
    if not is_trec_id(name):
        raise KinspanError(
            f"{place} id {name!r} is empty or has white space, which a TREC file cannot hold: give it another"
        )


def is_trec_id(name: str) -> bool:
    """Can a TREC file hold it?"""
    return bool(name) and not _WHITE_SPACE.search(name)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file that is whole or as it was before. Raises KinspanError where that is not possible."""
    try:
        write_atomically(path, lines)
    except OSError as error:
        raise KinspanError(f"{path} cannot be written: {error.strerror}") from error


def _read_table(path: Path, form: str, column: int, parse: Callable[[bytes], Number]) -> dict[str, dict[str, Number]]:
    """Returns the numbers of one column by question and candidate."""
    values: dict[str, dict[str, Number]] = {}
    for number, line in _read_lines(path):
        where, fields = f"{path} line {number}", line.split()  # of bytes: at ASCII white space, as trec_eval does
        if len(fields) != len(form.split()):
            raise KinspanError(f"{where}: {len(fields)} fields, not the {len(form.split())} of `{form}`")
        try:
            question, candidate = fields[0].decode(), fields[2].decode()
            value = parse(fields[column])
        except UnicodeDecodeError as error:
            raise KinspanError(f"{where}: not UTF-8") from error
        except ValueError as error:
            given = fields[column].decode(errors="replace")
            raise KinspanError(f"{where}: {given!r} is not {error}, which `{form}` asks for") from error
        of_question = values.setdefault(question, {})
        if candidate in of_question:
            raise KinspanError(f"{where}: candidate {candidate} of question {question} comes twice: remove one")
        of_question[candidate] = value
    if not values:
        raise KinspanError(f"{path} is empty: lines of `{form}` are needed")
    return values


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank with their numbers."""
    try:
        with path.open("rb") as file:
            first = file.readline().removeprefix(b"\xef\xbb\xbf")
            for number, line in enumerate(chain([first], file), 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise KinspanError(f"{path} cannot be read: {error.strerror}") from error


def _parse_score(field: bytes) -> float:
    wanted = "a finite number"
    try:
        value = float(field) if b"_" not in field else math.nan  # Python reads 1_000
    except ValueError:
        raise ValueError(wanted) from None
    if not math.isfinite(value):
        raise ValueError(wanted)
    return value


def _parse_relevance(field: bytes) -> int:
    if not re.fullmatch(rb"[+-]?\d{1,10}", field) or abs(int(field)) > MOST_RELEVANCE:
        raise ValueError("an integer")
    return int(field)
