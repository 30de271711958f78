"""Evaluations on disk: models side by side on the questions of a set, for the page that compares them.

A folder, whose name is the evaluation's, with three files:

- ``evaluation.json``: ``{"format": 1, "models": [...], "metrics": {model: {metric: number}}}``
- ``questions.jsonl``, a line for each question: ``{"id", "text", "right": [answer ids], "ranks": {model: rank or null},
  "found": {model: [[answer id, score or null], ...]}}``, the best first; ranks count from 1, beyond what is kept too
- ``answers.jsonl``, a line for each answer that is named: ``{"id", "text", "question", "url", "title"}``
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS
from finetune.evaluation.named_metrics import measure_retrieval

from ..answers import Answer

FORMAT = 1
SETTINGS, QUESTIONS, ANSWERS = "evaluation.json", "questions.jsonl", "answers.jsonl"
KEPT = 10  # answers of each model that are kept with a question
AGAIN = "write the evaluation again"


class EvaluatedQuery(NamedTuple):
    """A question of a set.

    right: ids of its right answers
    found: what each model found, the best first: ids, each with its score, or None where it is not known
    """

    id: str
    text: str
    right: Sequence[str]
    found: Mapping[str, Sequence[tuple[str, float | None]]]


class _Settings(BaseModel):
    format: int
    models: list[str] = Field(min_length=1)
    metrics: dict[str, dict[str, float]]


class _Question(BaseModel):
    id: str
    text: str
    right: list[str]
    ranks: dict[str, int | None]
    found: dict[str, list[tuple[str, float | None]]]


class _Answer(BaseModel):
    id: str
    text: str
    question: str = ""
    url: str = ""
    title: str = ""


@dataclass(frozen=True)
class LoadedEvaluation:
    """An evaluation in memory.

    summary: what GET /evaluations answers of it
    body:    what GET /evaluations/{name} answers, as JSON: its questions, too
    """

    summary: dict[str, Any]
    body: bytes
    questions: dict[str, _Question]
    answers: dict[str, _Answer]

    def describe_question(self, name: str) -> dict[str, Any]:
        """The right answers and each model's answers to the question of this id."""
        question = self.questions[name]

        def show(answer: str, score: float | None) -> dict[str, Any]:
            return self.answers[answer].model_dump() | {"score": score, "right": answer in question.right}

        return {
            "id": question.id,
            "text": question.text,
            "ranks": question.ranks,
            "right": [show(answer, None) for answer in question.right if answer in self.answers],
            "answers": {model: [show(*one) for one in found] for model, found in question.found.items()},
        }


def write_evaluation(folder: Path, asked: Sequence[EvaluatedQuery], answers: Iterable[Answer]) -> None:
    """Writes an evaluation. Metrics and ranks are those of all that was found; KEPT answers of each model are kept.

    answers: with the texts of those that were found, and of the right ones as far as they are at hand
    """
    models = list(asked[0].found)
    rows = [_describe(question) for question in asked]
    metrics = {}
    for model in models:
        found = [[answer for answer, _ in question.found[model]] for question in asked]
        figures = measure_retrieval(found, [set(question.right) for question in asked])
        names = {name: name.upper() for name in RETRIEVAL_METRICS} | {MRR: "MRR"}
        metrics[model] = {names[name]: round(float(np.mean(own)), 6) for name, own in figures.items()}
    named = {answer for row in rows for found in row["found"].values() for answer, _ in found}
    named |= {answer for question in asked for answer in question.right}
    folder.mkdir(parents=True, exist_ok=True)
    kept = (json.dumps(answer._asdict()) + "\n" for answer in answers if answer.id in named)
    write_atomically(folder / ANSWERS, kept)
    write_atomically(folder / QUESTIONS, (json.dumps(row) + "\n" for row in rows))
    settings = {"format": FORMAT, "models": models, "metrics": metrics}
    write_atomically(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")


def _describe(question: EvaluatedQuery) -> dict[str, Any]:
    right = set(question.right)
    ranks = {
        model: next((rank for rank, (answer, _) in enumerate(found, 1) if answer in right), None)
        for model, found in question.found.items()
    }
    kept = {model: [list(one) for one in found[:KEPT]] for model, found in question.found.items()}
    return {"id": question.id, "text": question.text, "right": list(question.right), "ranks": ranks, "found": kept}


def open_evaluations(folders: Sequence[str]) -> dict[str, LoadedEvaluation]:
    """The evaluations by their names. Raises KinspanError where one cannot be read, or two have the same name."""
    opened: dict[str, LoadedEvaluation] = {}
    for folder in map(Path, folders):
        name = folder.resolve().name
        if name in opened:
            raise KinspanError(f"--evaluation {folder}: two folders are called {name}: rename one")
        opened[name] = open_evaluation(folder, name)
    return opened


def open_evaluation(folder: Path, name: str) -> LoadedEvaluation:
    """Raises KinspanError, naming file and line, where something is missing or damaged."""
    if not (folder / SETTINGS).is_file():
        raise KinspanError(f"--evaluation {folder}: there is no {SETTINGS}: give the folder of an evaluation")
    settings = _parse(_Settings, (folder / SETTINGS).read_bytes(), f"{folder / SETTINGS}")
    if settings.format != FORMAT:
        raise KinspanError(f"{folder / SETTINGS} has format {settings.format}, not {FORMAT}: {AGAIN}")
    answers = _read_by_id(folder / ANSWERS, _Answer)
    questions = _read_by_id(folder / QUESTIONS, _Question)
    models = set(settings.models)
    for question in questions.values():
        if set(question.found) != models or set(question.ranks) != models:
            raise KinspanError(
                f"{folder / QUESTIONS}: question {question.id} has other models than {SETTINGS}: {AGAIN}"
            )
        if missing := [one for own in question.found.values() for one, _ in own if one not in answers]:
            raise KinspanError(f"{folder / ANSWERS}: the answer {missing[0]} is missing: {AGAIN}")
    if not questions:
        raise KinspanError(f"{folder / QUESTIONS}: no question in it: {AGAIN}")
    known = {"name": name, "models": settings.models, "metrics": settings.metrics}
    body = json.dumps(known | {"questions": [own.model_dump(exclude={"found"}) for own in questions.values()]})
    return LoadedEvaluation(known | {"questions": len(questions)}, body.encode(), questions, answers)


def _read_by_id(path: Path, kind: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                own = _parse(kind, line, f"{path} line {number}")
                if found.setdefault(own.id, own) != own:
                    raise KinspanError(f"{path} line {number}: the id {own.id!r} stands for another before: rename one")
    except OSError as error:
        raise KinspanError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    return found


def _parse(kind: type[BaseModel], text: bytes, place: str) -> Any:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise KinspanError(f"{place}: {where or 'the line'}: {first['msg']}: {AGAIN}") from error
